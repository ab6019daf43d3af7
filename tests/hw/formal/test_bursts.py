"""The burst planner, proved for any section: bursts lie inside it, cover it once, and cross no 4 KiB."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from amaranth.hdl import Assert, Assume, Elaboratable, Module, Signal

from relay_eps_hw.core.bursts import Bursts
from relay_eps_hw.core.shape import BOUNDARY, COUNT_BITS, Shape
from relay_eps_hw.faults import Faults
from tests.hw.faulty import fault_names
from tests.hw.formal.prove import past, prove


class BurstsAreRight(Elaboratable):
    """What is claimed of `Bursts`."""

    def __init__(self, beat_bytes: int, limit: int, fault: str | None = None) -> None:
        self.faults = None if fault is None else Faults()
        self.fault = fault
        self.beat_bytes = beat_bytes
        self.dut = Bursts(Shape(beat_bytes, limit), faults=self.faults)
        #: Beats of the section that is offered.
        self.length = Signal(COUNT_BITS)
        self.free = [self.dut.i.valid, self.dut.i.payload.as_value(), self.dut.o.ready, self.length]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.dut = dut = self.dut
        if self.faults is not None and self.fault is not None:
            m.d.comb += self.faults.select.eq(self.faults.number(self.fault))
        burst = dut.o.payload
        taken = dut.i.valid & dut.i.ready
        sent = dut.o.valid & dut.o.ready
        # No section is empty, has more than 2**30 fp32 elements in the narrowest beats, or goes beyond the addresses.
        section, most = dut.i.payload, 1 << COUNT_BITS - 1
        end = section.place + self.length
        m.d.comb += [
            Assume(self.length.any() & (self.length <= most)),
            Assume(end <= 1 << len(section.place)),
            Assume(section.final == (end - 1)[: len(section.final)]),
        ]

        # What was taken, and how much of it has been sent.
        start, beats = Signal.like(section.place), Signal(COUNT_BITS)
        done = Signal(COUNT_BITS)
        with m.If(taken):
            m.d.sync += [start.eq(section.place), beats.eq(self.length), done.eq(0)]
        with m.Elif(sent):
            m.d.sync += done.eq(done + burst.beats)

        # Something is left until all of it has been sent, and the section that the induction begins in is one that
        # could have been taken.
        m.d.comb += [
            Assert(dut.o.valid == (done != beats)),
            Assert(done <= beats),
            Assert(beats <= most),
            Assert(start + beats <= 1 << len(start)),
            Assert(~dut.o.valid | (dut.final == (start + beats - 1)[: len(dut.final)])),
        ]
        with m.If(dut.o.valid):
            m.d.comb += [
                Assert(burst.place == start + done),
                Assert(burst.beats.any()),
                Assert(burst.beats <= dut.limit),
                Assert(done + burst.beats <= beats),
                Assert(burst.last == (done + burst.beats == beats)),
            ]
            row = (BOUNDARY // self.beat_bytes).bit_length() - 1
            final = burst.place + burst.beats - 1
            m.d.comb += Assert(burst.place[row:] == final[row : len(burst.place)])
        # A burst that waits stays as it is; a section enters when the last one's last burst leaves.
        waited, payload = past(m, dut.o.valid & ~dut.o.ready), past(m, burst.as_value())
        with m.If(waited):
            m.d.comb += [Assert(dut.o.valid), Assert(burst.as_value() == payload)]
        m.d.comb += Assert(dut.i.ready == (~dut.o.valid | dut.o.ready & burst.last))
        return m


@pytest.mark.parametrize(("beat_bytes", "limit"), [(8, 16), (8, 256), (64, 64)])
def test_bursts_cover_a_section_once_and_cross_no_boundary(tmp_path: Path, beat_bytes: int, limit: int):
    claim = BurstsAreRight(beat_bytes, limit)
    outcome = prove(claim, claim.free, tmp_path, steps=2)
    assert outcome.proved, outcome.log


@pytest.mark.parametrize("fault", fault_names(partial(Bursts, Shape(8, 16))))
def test_each_fault_breaks_the_proof(tmp_path: Path, fault: str):
    claim = BurstsAreRight(8, 16, fault)
    assert prove(claim, claim.free, tmp_path, steps=5, refute=True).refuted
