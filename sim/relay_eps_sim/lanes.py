"""The AdamA lanes under Verilator: beats in, beats out, at a million elements a second or more."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from relay_eps_hw.faults import Faults
from relay_eps_hw.lane.beat import beat_in_layout, beat_out_layout
from relay_eps_hw.lane.timing import SHALLOW, Depths
from relay_eps_hw.targets import Target
from relay_eps_hw.verilog import LANES_MODULE, fields, lanes_verilog
from relay_eps_sim.packing import Places, Words
from relay_eps_sim.verilator import build_library
from relay_eps_sim.verilog import without_initial_values

WIDTH = 32


class SimulatedLanes:
    """The generated Verilog of ``lanes`` lanes, compiled and cached, driven through its streams.

    Args:
        lanes, depths, target: as for `lanes_verilog`.
        faults: build the faults in; `select_fault` activates one.
        random_start: where not 0, registers without a reset start with random values of this seed.

    Raises BuildError where it cannot be compiled, ValueError for what `lanes_verilog` refuses.
    """

    def __init__(
        self,
        lanes: int,
        *,
        depths: Depths = SHALLOW,
        target: Target = Target.GENERIC,
        faults: Faults | None = None,
        random_start: int = 0,
    ) -> None:
        self.lanes = lanes
        self.places_in: Places = fields(beat_in_layout(lanes, WIDTH))
        self.places_out: Places = fields(beat_out_layout(lanes, WIDTH))
        verilog = without_initial_values(lanes_verilog(lanes, depths=depths, target=target, faults=faults))
        defines = {"FAULTS": 1} if faults is not None else {}
        library = build_library(verilog, LANES_MODULE, Path(__file__).with_suffix(".cpp"), defines=defines)
        self._library = _load(library)
        self.words_in = self._library.lanes_words_in()
        self.words_out = self._library.lanes_words_out()
        self._handle = self._library.lanes_create(random_start)

    def select_fault(self, number: int) -> None:
        """Activate the fault of this number; 0 for none."""
        self._library.lanes_select_fault(ctypes.c_void_p(self._handle), number)

    def run(self, payloads: Words, *, seed: int = 0, idle: float = 0, blocked: float = 0) -> tuple[Words, int]:
        """Send payloads (beats × `words_in`), receive as many (beats × `words_out`); and the clocks it took.

        ``idle`` and ``blocked`` are the probabilities of a clock in which nothing is sent, or nothing taken.
        Raises RuntimeError if the lanes stop answering.
        """
        sent = np.ascontiguousarray(payloads, np.uint32)
        if sent.ndim != 2 or sent.shape[1] != self.words_in:
            raise ValueError(f"payloads are beats of {self.words_in} words, not an array of shape {sent.shape}")
        received = np.empty((len(sent), self.words_out), np.uint32)
        flow = max(1 - idle, 0.01) * max(1 - blocked, 0.01)
        limit = int(1000 + 4 * len(sent) / flow)
        clocks = self._library.lanes_run(
            self._handle,
            sent.ctypes.data,
            received.ctypes.data,
            len(sent),
            seed,
            int(idle * (2**32 - 1)),
            int(blocked * (2**32 - 1)),
            limit,
        )
        if not clocks and len(sent):
            raise RuntimeError(f"the lanes did not give back {len(sent)} beats within {limit} clocks")
        return received, clocks

    def close(self) -> None:
        """Free the model."""
        if self._handle is not None:
            self._library.lanes_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> SimulatedLanes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.lanes_create.restype = ctypes.c_void_p
    library.lanes_create.argtypes = [ctypes.c_uint32]
    library.lanes_destroy.argtypes = [ctypes.c_void_p]
    library.lanes_words_in.restype = library.lanes_words_out.restype = ctypes.c_uint64
    library.lanes_run.restype = ctypes.c_uint64
    library.lanes_run.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.c_uint64,
    ]
    return library
