"""What is around the lanes, proved: with any elements, scalars, gaps and back-pressure, for ever.

In place of each lane stands one without arithmetic, a few clocks long and with elements of three bits, whose outputs
say which operands and scalars they come from. So this is also about scalars: each beat must meet its own.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import xor
from pathlib import Path

import pytest
from amaranth.hdl import Assert, Assume, Cat, Elaboratable, Module, Mux, Signal, Value

from relay_eps_hw.faults import Faults
from relay_eps_hw.floats.formats import FloatFormat
from relay_eps_hw.lane.beat import SCALARS, SIGNED, Operation
from relay_eps_hw.lane.buffer import Column
from relay_eps_hw.lane.lanes import ENTRY, Lanes
from relay_eps_hw.lane.scalars import outside_contract
from relay_eps_hw.lane.timing import Timing
from tests.hw.faulty import fault_names
from tests.hw.formal.prove import Watched, past, prove
from tests.hw.lane.stand_in import SOURCES, StandInLane


class Tiny(FloatFormat):
    """A format too small for float units: there are none here."""

    def __post_init__(self) -> None:
        pass


FMT = Tiny(1, 1)
#: Columns are written at different times, and scalars are sampled at different times.
TIMING = Timing(
    scalars={"scale": 0, "b1": 1, "c1": 1, "b2": 1, "c2": 2, "r2": 2, "eps": 3, "k": 2, "s": 1},
    w_format=2,
    nonfinite=1,
    m=1,
    v=2,
    p=2,
    wire=3,
)
COLUMNS = ("m", "v", "p", "wire", "control")


class LanesAreRight(Elaboratable):
    """What is claimed of `Lanes`, and what of its inside shows it."""

    def __init__(self, lanes: int, fault: str | None = None) -> None:
        self.faults = None if fault is None else Faults()
        self.fault = fault
        self.dut = Lanes(lanes, lambda: StandInLane(FMT, TIMING), faults=self.faults)
        # More than the beats that can be inside: the buffer's rows, and two beyond its RAM.
        self.number = Signal(range(2 * self.dut.rows))
        self.free = [self.dut.i.valid, self.dut.i.payload.as_value(), self.dut.o.ready, self.number]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Elaborated here, so that its inside can be looked at.
        inside = self.dut.elaborate(None)
        m.submodules.dut = inside
        if self.faults is not None and self.fault is not None:
            m.d.comb += self.faults.select.eq(self.faults.number(self.fault))
        dut = self.dut
        beat = dut.i.payload
        # The operation that replaces no operand and no scalar.
        m.d.comb += [Assume(beat.operation == Operation.FOLD_APPLY), Assume(beat.first)]
        enters, leaves = dut.i.valid & dut.i.ready, dut.o.valid & dut.o.ready
        wanted = self._wanted(m, enters)
        watched = Watched(m, self.number, enters, leaves, Cat(wanted.values()))
        self._claims(m, watched)
        self._inside(m, inside, watched, {name: len(value) for name, value in wanted.items()})
        return m

    def _wanted(self, m: Module, enters: Value) -> dict[str, Value]:
        """What the beat that enters is to be in each column."""
        beat = self.dut.i.payload
        lanes = range(len(beat.mask))
        columns: dict[str, Value] = {}
        for name, (operand, scalars) in SOURCES.items():
            masks = reduce(xor, [beat.scalars[scalar] for scalar in scalars])
            if name == "wire":
                masks ^= beat.g_format ^ beat.w_format
            columns[name] = Cat(beat.elements[lane][operand] ^ masks for lane in lanes)
        gradients = [beat.elements[lane].g[FMT.fraction : -1].all() for lane in lanes]
        outside = [outside_contract(FMT, beat.scalars[name], signed=name in SIGNED) for name in SCALARS]
        found = Cat((Cat(gradients) & beat.mask).any(), Cat(outside).any())
        # Flags last for the rest of an operation.
        self.earlier = Signal(2)
        flags = found | self.earlier
        with m.If(enters):
            m.d.sync += self.earlier.eq(Mux(beat.last, 0, flags))
        columns["control"] = Cat(beat.last, beat.mask, flags)
        return columns

    def _claims(self, m: Module, watched: Watched) -> None:
        dut = self.dut
        out = dut.o.payload
        elements = [out.elements[lane][name] for name in COLUMNS[:-1] for lane in range(len(out.mask))]
        beat = Cat(*elements, out.last, out.mask, out.nonfinite, out.outside)

        # None is lost, doubled or made up; they keep their order; none changes; masks, last and flags stay with them.
        with m.If(dut.o.valid & (watched.left == watched.number)):
            m.d.comb += Assert(beat == watched.holds)

        # A beat that waits stays, and stays the same.
        waited, before = past(m, dut.o.valid & ~dut.o.ready), past(m, beat)
        with m.If(waited):
            m.d.comb += [Assert(dut.o.valid), Assert(beat == before)]

        # Never more are inside than the buffer has rows, and two behind its RAM. As long as there are fewer than rows,
        # another may enter.
        inside = (watched.entered - watched.left)[: len(self.number)]
        m.d.comb += Assert(inside <= dut.rows + 2)
        with m.If(inside < dut.rows):
            m.d.comb += Assert(dut.i.ready)

        # None stays behind: `latency` clocks and two more after it entered it is the next to leave.
        arrived = past(m, watched.entered, dut.latency + 2)
        with m.If(arrived != watched.left):
            m.d.comb += Assert(dut.o.valid)

    def _inside(self, m: Module, inside: Module, watched: Watched, widths: dict[str, int]) -> None:
        """What makes the induction close: where in the buffer the watched beat lies, and what its counters count.

        What is on its way through the lanes never stalls; the induction looks back to where it entered.
        """
        dut = self.dut
        occupancy = inside.submodules.occupancy
        bits = len(self.number)
        complete = past(m, watched.entered, dut.latency)
        fetched = (watched.left + dut.o.valid + occupancy.out)[:bits]
        m.d.comb += [
            Assert(occupancy.taken == (watched.entered - fetched)[:bits]),
            Assert(occupancy.taken <= dut.rows),
            Assert(occupancy.full == (occupancy.taken == dut.rows)),
            Assert(occupancy.waiting == (complete - fetched)[:bits]),
            Assert(occupancy.waiting <= occupancy.taken),
            Assert(occupancy.any_waiting == occupancy.waiting.any()),
        ]
        known = ENTRY + TIMING.nonfinite + 1
        written_at = {name: ENTRY + getattr(TIMING, name) for name in COLUMNS[:-1]} | {"control": known}
        earlier = past(m, self.earlier, known)
        m.d.comb += Assert(dut.earlier == earlier)
        start = 0
        for name in COLUMNS:
            column: Column = getattr(inside.submodules, f"column_{name}")
            holds = watched.holds[start : start + widths[name]]
            start += widths[name]
            row = column.ram.read_port(domain="comb")
            written = past(m, watched.entered, written_at[name])
            m.d.comb += [
                row.addr.eq(watched.number),
                Assert(column.written == written[: len(column.written)]),
                Assert(column.fetched == fetched[: len(column.fetched)]),
            ]
            with m.If(watched.between(fetched, written)):
                m.d.comb += Assert(row.data == holds)
            with m.If(occupancy.out & (watched.ahead(watched.left) == dut.o.valid)):
                m.d.comb += Assert(column.read.data == holds)


def test_lanes_lose_double_reorder_and_change_no_beat(tmp_path: Path):
    claim = LanesAreRight(2)
    outcome = prove(claim, claim.free, tmp_path, steps=claim.dut.latency + 4)
    assert outcome.proved, outcome.log


def faults_around_the_lanes() -> list[object]:
    """A run for each fault; of those that delay a scalar, one is enough but for `make slow`."""
    every = fault_names(partial(Lanes, 1, lambda: StandInLane(FMT, TIMING)))
    slow = {f"lanes.{name}-a-clock-late" for name in SCALARS[1:]}
    names = [name for name in every if name.startswith(("buffer.", "lanes."))]
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in names]


@pytest.mark.parametrize("fault", faults_around_the_lanes())
def test_each_fault_breaks_the_proof(tmp_path: Path, fault: str):
    claim = LanesAreRight(1, fault)
    assert prove(claim, claim.free, tmp_path, steps=20, refute=True).refuted
