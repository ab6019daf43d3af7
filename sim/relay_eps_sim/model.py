"""A compiled design and its one C++ object: what every simulated design here has in common."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from relay_eps_hw.faults import Faults
from relay_eps_sim import checks
from relay_eps_sim.verilator import build_library, load
from relay_eps_sim.verilog import without_initial_values

if TYPE_CHECKING:
    from typing_extensions import Self


class Model:
    """The module ``top`` of ``verilog``, compiled with a C++ driver and cached; a context manager that frees it.

    Registers and memories start with random values, so that nothing works only because they happen to be zero.

    Attributes:
        library: the functions of the driver.

    Args:
        driver: a C++ file that includes ``model.h`` and defines ``model_create``.
        defines: for its compilation.
        faults: those built into the design, which then has an input ``fault``.
        seed: of the random values, 0 to 2**31 - 1; 0 for zeros.
        trace: compile it so that the driver can write waves; it is slower even while it does not.

    Raises BuildError where it cannot be compiled.
    """

    def __init__(
        self,
        verilog: str,
        top: str,
        driver: Path,
        *,
        defines: Mapping[str, object] | None = None,
        faults: Faults | None = None,
        seed: int,
        trace: bool = False,
    ) -> None:
        self._handle: ctypes.c_void_p | None = None
        self._faults = faults
        every = dict(defines or {}) | ({} if faults is None else {"FAULTS": 1})
        path = build_library(without_initial_values(verilog), top, driver, defines=every, trace=trace)
        self.library = load(path)
        self.library.model_create.restype = ctypes.c_void_p
        self.library.model_create.argtypes = [ctypes.c_uint32]
        self._handle = ctypes.c_void_p(self.library.model_create(checks.seed(seed)))

    @property
    def handle(self) -> ctypes.c_void_p:
        """The C++ object, for functions of the driver; RuntimeError once it is freed."""
        if self._handle is None:
            raise RuntimeError("the simulated design was closed: make a new one")
        return self._handle

    def select_fault(self, number: int) -> None:
        """Activate the fault of this number; 0 for none. ValueError for one that it was built without."""
        handle = self.handle
        if self._faults is None:
            raise ValueError("this design was built without faults: give it a Faults")
        if number not in range(len(self._faults.names) + 1):
            raise ValueError(f"there is no fault {number!r}: use 0 for none, or 1 to {len(self._faults.names)}")
        self.library.model_select_fault(handle, ctypes.c_uint32(number))

    def close(self) -> None:
        """Free the C++ object; nothing happens the second time."""
        if self._handle is not None:
            self.library.model_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
