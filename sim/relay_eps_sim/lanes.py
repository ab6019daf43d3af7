"""The AdamA lanes under Verilator: beats in, beats out, at a million elements a second or more."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from relay_eps_hw.faults import Faults
from relay_eps_hw.lane.beat import beat_in_layout, beat_out_layout
from relay_eps_hw.lane.timing import SHALLOW, Depths
from relay_eps_hw.verilog import LANES_MODULE, fields, lanes_verilog
from relay_eps_sim import checks
from relay_eps_sim.model import Model
from relay_eps_sim.packing import Places, Words

WIDTH = 32


class SimulatedLanes(Model):
    """The generated Verilog of ``lanes`` lanes, compiled and cached, driven through its streams.

    Args:
        lanes, depths: as for `lanes_verilog`. The bits do not depend on its target, so there is none.
        faults: build the faults in; `select_fault` activates one.
        seed: registers without a reset start with random values of this seed, 0 to 2**31 - 1; with zeros for 0.

    Raises BuildError where it cannot be compiled, ValueError for what `lanes_verilog` refuses.
    """

    def __init__(
        self,
        lanes: int,
        *,
        depths: Depths = SHALLOW,
        faults: Faults | None = None,
        seed: int = 1,
    ) -> None:
        self.lanes = lanes
        self.places_in: Places = fields(beat_in_layout(lanes, WIDTH))
        self.places_out: Places = fields(beat_out_layout(lanes, WIDTH))
        verilog = lanes_verilog(lanes, depths=depths, faults=faults)
        driver = Path(__file__).with_suffix(".cpp")
        super().__init__(verilog, LANES_MODULE, driver, faults=faults, seed=seed)
        _declare(self.library)
        self.words_in: int = self.library.lanes_words_in()
        self.words_out: int = self.library.lanes_words_out()

    def run(self, payloads: Words, *, seed: int = 0, idle: float = 0, blocked: float = 0) -> tuple[Words, int]:
        """Send payloads (beats × `words_in`), receive as many (beats × `words_out`); and the clocks it took.

        ``idle`` and ``blocked``, 0 to 0.99, are the probabilities of a clock in which nothing is sent, or nothing
        taken. Raises RuntimeError if the lanes stop answering; the design is then closed, since it holds beats.
        """
        sent = checks.bits("payloads", payloads)
        if sent.ndim != 2 or sent.shape[1] != self.words_in:
            raise ValueError(f"payloads are beats of {self.words_in} words, not an array of shape {sent.shape}")
        received = np.empty((len(sent), self.words_out), np.uint32)
        flow = (1 - checks.probability("idle", idle)) * (1 - checks.probability("blocked", blocked))
        limit = int(1000 + (4 * len(sent) + 1000) / flow)
        clocks: int = self.library.lanes_run(
            self.handle,
            sent.ctypes.data,
            received.ctypes.data,
            len(sent),
            checks.seed(seed),
            int(idle * (2**32 - 1)),
            int(blocked * (2**32 - 1)),
            limit,
        )
        if not clocks and len(sent):
            self.close()
            raise RuntimeError(f"the lanes did not give back {len(sent)} beats within {limit} clocks")
        return received, clocks


def _declare(library: ctypes.CDLL) -> None:
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
