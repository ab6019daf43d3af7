"""The gate, proved: no burst passes before the write that it follows is acknowledged up to the burst's end."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from amaranth.hdl import Assert, Assume, Elaboratable, Module, Mux, Signal

from relay_eps_hw.core.gate import Gate
from relay_eps_hw.core.sections import AFTER, SLOT_BITS
from relay_eps_hw.core.shape import COUNT_BITS, OWNER_BITS, SLOTS, Shape
from relay_eps_hw.faults import Faults
from tests.hw.faulty import fault_names
from tests.hw.formal.prove import past, prove

LIMIT = 4


class GateIsRight(Elaboratable):
    """What is claimed of `Gate`, whose writer is modelled: it acknowledges beats as it likes, in order."""

    def __init__(self, fault: str | None = None) -> None:
        self.faults = None if fault is None else Faults()
        self.fault = fault
        self.dut = Gate(Shape(8, LIMIT, 32), faults=self.faults)
        dut = self.dut
        #: What the writer has acknowledged of the section that is waited for, and whether that is all.
        self.more, self.ends, self.retires = Signal(2), Signal(), Signal()
        self.other = Signal(COUNT_BITS)
        self.free = [
            dut.begins,
            dut.after.as_value(),
            dut.i.valid,
            dut.i.payload.as_value(),
            dut.o.ready,
            self.more,
            self.ends,
            self.retires,
            self.other,
        ]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.dut = dut = self.dut
        if self.faults is not None and self.fault is not None:
            m.d.comb += self.faults.select.eq(self.faults.number(self.fault))
        burst = dut.i.payload
        after, passed = Signal(AFTER), Signal(COUNT_BITS)
        acknowledged, finished, retired = Signal(COUNT_BITS), Signal(), Signal()
        passes = dut.o.valid & dut.o.ready
        m.d.comb += [
            Assume(burst.beats.any() & (burst.beats <= LIMIT)),
            # No burst of a section comes before the section, and none is left when the next one begins.
            Assume(~dut.begins | ~dut.i.valid),
            Assume(passed < 1 << (COUNT_BITS - 2)),
            Assume(acknowledged < 1 << (COUNT_BITS - 2)),
            Assume(self.other < 1 << (COUNT_BITS - 2)),
            # A descriptor leaves the pipeline with all its writes finished.
            Assume(~self.retires | finished),
        ]
        with m.If(dut.begins):
            m.d.sync += [after.eq(dut.after), passed.eq(0)]
            m.d.sync += [acknowledged.eq(0), finished.eq(0), retired.eq(0)]
        with m.Else():
            with m.If(passes):
                m.d.sync += passed.eq(passed + burst.beats)
            m.d.sync += [
                acknowledged.eq(acknowledged + self.more),
                finished.eq(finished | self.ends),
                retired.eq(retired | self.retires),
            ]

        # What the ledger says of it: beats while it is the last one acknowledged, else another descriptor's.
        writer = dut.progress.writers[after.writer]
        some = acknowledged.any()
        for number in range(len(dut.progress.writers)):
            said = dut.progress.writers[number]
            is_it = (after.writer == number) & some
            m.d.comb += [
                said.valid.eq(1),
                said.owner.eq(Mux(is_it, after.owner, after.owner + 1)),
                said.beats.eq(Mux(is_it, acknowledged, self.other)),
            ]
        m.d.comb += dut.progress.oldest.eq(Mux(retired, after.owner + 1, after.owner)[:OWNER_BITS])
        for slot in range(SLOTS):
            is_slot = after.owner[:SLOT_BITS] == slot
            m.d.comb += dut.progress.finished[slot].eq(Mux(is_slot & finished, 1 << after.writer, 0))

        may = ~after.waits | finished | (passed + burst.beats <= acknowledged)
        m.d.comb += [
            Assert(~passes | may),
            Assert(dut.passed == passed),
            # What it keeps is never more than what was acknowledged.
            Assert(finished | ~after.waits | (dut.limit <= acknowledged)),
            Assert(writer.valid),
        ]
        # A burst that is offered stays until it is taken, and is not changed.
        held = past(m, dut.i.valid & ~dut.i.ready)
        m.d.comb += Assume(~held | dut.i.valid & (burst.as_value() == past(m, burst.as_value())))
        m.d.comb += Assert(dut.o.payload.as_value() == burst.as_value())
        return m


def test_no_read_overtakes_the_write_that_it_follows(tmp_path: Path):
    claim = GateIsRight()
    outcome = prove(claim, claim.free, tmp_path, steps=4)
    assert outcome.proved, outcome.log


@pytest.mark.parametrize("fault", fault_names(partial(Gate, Shape(8, LIMIT, 32))))
def test_each_fault_breaks_the_proof(tmp_path: Path, fault: str):
    claim = GateIsRight(fault)
    assert prove(claim, claim.free, tmp_path, steps=8, refute=True).refuted
