"""Credit, proved: a read's data always has room, and a write's data is all there before its address.

The queue and the slave are counters: beats asked for and not yet come, beats in the queue, beats on their way out.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from amaranth.hdl import Assert, Assume, Elaboratable, Module, Signal

from relay_eps_hw.core.credit import Credit, read_credit, write_credit
from relay_eps_hw.core.shape import Shape
from relay_eps_hw.faults import Faults
from tests.hw.faulty import fault_names
from tests.hw.formal.prove import past, prove

LIMIT, ROWS = 8, 12


class CreditIsRight(Elaboratable):
    """What is claimed of a read's credit, and of a write's."""

    def __init__(self, *, reads: bool, fault: str | None = None) -> None:
        self.faults = None if fault is None else Faults()
        self.fault = fault
        self.reads = reads
        make = read_credit if reads else write_credit
        self.dut: Credit = make(Shape(8, LIMIT), ROWS, faults=self.faults)
        #: A beat comes from the slave or the lanes; one goes on to the lanes or the slave.
        self.comes, self.goes = Signal(), Signal()
        self.free = [self.dut.i.valid, self.dut.i.payload.as_value(), self.dut.o.ready, self.comes, self.goes]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.dut = dut = self.dut
        if self.faults is not None and self.fault is not None:
            m.d.comb += self.faults.select.eq(self.faults.number(self.fault))
        beats = dut.i.payload.beats
        m.d.comb += Assume((beats != 0) & (beats <= LIMIT))
        waits = past(m, dut.i.valid & ~dut.i.ready)
        m.d.comb += Assume(~waits | dut.i.valid & (dut.i.payload.as_value() == past(m, dut.i.payload.as_value())))
        asked = dut.o.valid & dut.o.ready
        if self.reads:
            self._reads(m, asked)
        else:
            self._writes(m, asked)
        m.d.comb += [
            Assert(dut.o.payload.as_value() == dut.i.payload.as_value()),
            Assert(asked == (dut.i.valid & dut.i.ready)),
        ]
        # A burst for which there is credit is not held back.
        with m.If(dut.i.valid & (dut.credit >= beats)):
            m.d.comb += Assert(dut.o.valid)
        # What waits to be asked for goes on waiting.
        with m.If(past(m, dut.o.valid & ~dut.o.ready)):
            m.d.comb += Assert(dut.o.valid)
        return m

    def _reads(self, m: Module, asked: Signal) -> None:
        dut = self.dut
        outstanding, queued = Signal(range(ROWS + 1)), Signal(range(ROWS + 1))
        m.d.comb += [
            # A slave sends what was asked for; an empty queue gives nothing.
            Assume(~self.comes | (outstanding != 0)),
            Assume(~self.goes | (queued != 0)),
            dut.more.eq(self.goes),
        ]
        new = Signal.like(dut.i.payload.beats)
        with m.If(asked):
            m.d.comb += new.eq(dut.i.payload.beats)
        m.d.sync += [outstanding.eq(outstanding + new - self.comes), queued.eq(queued + self.comes - self.goes)]
        m.d.comb += Assert(dut.credit + outstanding + queued == ROWS)

    def _writes(self, m: Module, asked: Signal) -> None:
        dut = self.dut
        queued, claimed = Signal(range(ROWS + 1)), Signal(range(ROWS + 1))
        m.d.comb += [
            # A full queue takes nothing; the port takes what it has asked for.
            Assume(~self.comes | (queued != ROWS)),
            Assume(~self.goes | (claimed != 0)),
            dut.more.eq(self.comes),
        ]
        new = Signal.like(dut.i.payload.beats)
        with m.If(asked):
            m.d.comb += new.eq(dut.i.payload.beats)
        m.d.sync += [queued.eq(queued + self.comes - self.goes), claimed.eq(claimed + new - self.goes)]
        # Of what lies in the queue, so much belongs to bursts that were asked for, and the rest is credit.
        m.d.comb += [Assert(claimed + dut.credit == queued), Assert(queued <= ROWS)]


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "writes"])
def test_an_address_is_asked_for_only_with_credit(tmp_path: Path, reads: bool):
    claim = CreditIsRight(reads=reads)
    outcome = prove(claim, claim.free, tmp_path, steps=2)
    assert outcome.proved, outcome.log


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "writes"])
@pytest.mark.parametrize("fault", fault_names(partial(read_credit, Shape(8, LIMIT), ROWS)))
def test_each_fault_breaks_the_proof(tmp_path: Path, fault: str, reads: bool):
    claim = CreditIsRight(reads=reads, fault=fault)
    assert prove(claim, claim.free, tmp_path, steps=8, refute=True).refuted


def test_a_queue_that_never_holds_a_burst_is_refused():
    with pytest.raises(ValueError, match="a queue of 15 beats never holds a burst of 16: use 16 or more"):
        read_credit(Shape(8, 16), 15)
