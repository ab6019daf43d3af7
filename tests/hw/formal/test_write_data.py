"""The data of write bursts, proved: never more beats than asked, the last one marked, none lost or changed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from amaranth.hdl import Array, Assert, Assume, Elaboratable, Module, Mux, Signal

from relay_eps_hw.core.write_data import WriteData
from relay_eps_hw.faults import Faults
from tests.hw.faulty import fault_names
from tests.hw.formal.prove import past, prove

STREAMS, BEAT_BYTES, LIMIT = 2, 1, 4


class WriteDataIsRight(Elaboratable):
    """What is claimed of `WriteData`."""

    def __init__(self, fault: str | None = None) -> None:
        self.faults = None if fault is None else Faults()
        self.fault = fault
        self.dut = WriteData(STREAMS, BEAT_BYTES, LIMIT, faults=self.faults)
        dut = self.dut
        self.free = [dut.bursts.valid, dut.bursts.payload.as_value(), dut.void, dut.o.ready]
        for beats in dut.beats:
            self.free += [beats.valid, beats.payload.as_value()]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.dut = dut = self.dut
        if self.faults is not None and self.fault is not None:
            m.d.comb += self.faults.select.eq(self.faults.number(self.fault))
        burst = dut.bursts.payload
        m.d.comb += Assume((burst.beats != 0) & (burst.beats <= LIMIT) & (burst.number < STREAMS))
        for offered in (dut.bursts, *dut.beats):
            waits, payload = past(m, offered.valid & ~offered.ready), past(m, offered.payload.as_value())
            m.d.comb += Assume(~waits | offered.valid & (offered.payload.as_value() == payload))
        taken = [beats.valid & beats.ready for beats in dut.beats]
        void = dut.void.bit_select(burst.number, 1)
        # A beat that is void goes out without being taken from its stream.
        some = taken[0] | taken[1] | void & dut.bursts.valid & (~dut.o.valid | dut.o.ready)
        sent = dut.o.valid & dut.o.ready

        # Beats are taken from the stream whose burst it is, and from no other.
        for number, one in enumerate(taken):
            m.d.comb += Assert(~one | (burst.number == number) & dut.bursts.valid & ~void)
        # Each goes into the register as it is, but for strobes where nothing is written any more.
        chosen = Array(beats.payload for beats in dut.beats)[burst.number]
        strobes = Mux(void, 0, chosen.strobes)
        entered, sent_data, sent_strobes = past(m, some), past(m, chosen.data), past(m, strobes)
        ended = past(m, dut.bursts.ready)
        with m.If(entered):
            m.d.comb += [
                Assert(dut.o.valid),
                Assert(past(m, void) | (dut.o.payload.data == sent_data)),
                Assert(dut.o.payload.strobes == sent_strobes),
                Assert(dut.o.payload.last == ended),
            ]
        # None enters over another, and none is lost.
        m.d.comb += Assert(~some | ~dut.o.valid | dut.o.ready)
        waited, payload = past(m, dut.o.valid & ~dut.o.ready), past(m, dut.o.payload.as_value())
        with m.If(waited):
            m.d.comb += [Assert(dut.o.valid), Assert(dut.o.payload.as_value() == payload)]
        left_empty = past(m, sent) & ~entered
        with m.If(left_empty):
            m.d.comb += Assert(~dut.o.valid)

        # Beats of the burst so far: it goes with its last one, which is marked.
        count = Signal(range(LIMIT + 1))
        with m.If(some):
            m.d.sync += count.eq(Mux(dut.bursts.ready, 0, count + 1))
        m.d.comb += [
            Assert(count == dut.taken),
            Assert(~dut.bursts.valid | (count < burst.beats)),
            # A burst of which beats have been taken is there until its last one is.
            Assert((count == 0) | dut.bursts.valid),
            Assert((dut.bursts.valid & dut.bursts.ready) == (some & (count + 1 == burst.beats))),
        ]
        return m


def test_a_burst_has_as_many_beats_as_asked_for_and_its_last_one_is_marked(tmp_path: Path):
    claim = WriteDataIsRight()
    outcome = prove(claim, claim.free, tmp_path, steps=3)
    assert outcome.proved, outcome.log


@pytest.mark.parametrize("fault", fault_names(partial(WriteData, STREAMS, BEAT_BYTES, LIMIT)))
def test_each_fault_breaks_the_proof(tmp_path: Path, fault: str):
    claim = WriteDataIsRight(fault)
    assert prove(claim, claim.free, tmp_path, steps=8, refute=True).refuted
