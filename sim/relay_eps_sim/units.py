"""One float unit under Verilator: arrays of operands in, an array of results out, at millions a second."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.verilog import convert
from relay_eps_sim import checks
from relay_eps_sim.checks import Bits
from relay_eps_sim.model import Model


class SimulatedUnit(Model):
    """A float unit of at most 32-bit ports, compiled and cached. Its registers start with random values.

    Args:
        unit: the unit; where it has faults they are built in, and `select_fault` activates one.
        models: Verilog of primitives that the unit uses.

    Raises BuildError where it cannot be compiled, ValueError for a unit of wider ports.
    """

    def __init__(self, unit: FloatUnit, *, models: str = "", seed: int = 1) -> None:
        wide = [name for name in (*unit.OPERANDS, "o") if len(getattr(unit, name)) > 32]
        if wide:
            raise ValueError(f"{type(unit).__name__} has ports of more than 32 bits: {', '.join(wide)}")
        self.unit = unit
        self._latency = unit.latency
        ports = [getattr(unit, name) for name in ("en", *unit.OPERANDS, "o")]
        if unit.faults is not None:
            ports.append(unit.faults.select)
        text = convert(unit, "unit", ports)
        defines: dict[str, object] = {"OPERANDS": " ".join(f"X({name})" for name in unit.OPERANDS)}
        defines |= {f"{name}_MASK": f"{(1 << len(getattr(unit, name))) - 1:#x}u" for name in unit.OPERANDS}
        driver = Path(__file__).with_name("unit.cpp")
        super().__init__(text + models, "unit", driver, defines=defines, faults=unit.faults, seed=seed)
        self.library.unit_run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_uint32,
            ctypes.c_uint64,
            ctypes.c_uint32,
        ]

    def run(self, *operands: NDArray, stalled: float = 0, seed: int = 1) -> Bits:
        """The results, as many as there are operands; ``stalled`` is the probability of a clock in which it holds."""
        names = self.unit.OPERANDS
        if len(operands) != len(names):
            raise ValueError(f"{len(operands)} operands were given: the unit takes {', '.join(names)}")
        arrays = [checks.bits(name, operand) for name, operand in zip(names, operands, strict=True)]
        if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
            raise ValueError(f"the operands {', '.join(names)} are one-dimensional arrays of one length")
        results = np.empty_like(arrays[0])
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        self.library.unit_run(
            self.handle,
            pointers,
            results.ctypes.data,
            len(results),
            self._latency,
            checks.seed(seed),
            int(checks.probability("stalled", stalled) * (2**32 - 1)),
        )
        return results
