"""Hazards: each section of a descriptor against those of the descriptors before it, one a clock."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.sections import AFTER, READS, WRITES
from relay_eps_hw.core.shape import OWNER_BITS, SLOTS
from relay_eps_hw.core.table import INDEX, STREAM_BITS, entry_layout
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.interface.descriptors import STREAMS


class Scan(wiring.Component):
    """Compares the sections of one descriptor, which are in the table, with each other and with all in the pipeline.

    A section that is read follows the last write of it. One that is written without being read, and that another stream
    writes, has to wait until the pipeline is empty: only within a stream are writes in order. Sections are equal or
    disjoint; where two overlap in part, the later one is at fault.

    Ports:
        start (in, 1): begin; what is below must stay until ``done``.
        owner (in, 3): the descriptor; oldest (in, 3), count (in): those in the pipeline before it.
        reads, used (in): masks of its streams.
        at (out, `INDEX`), entry (in, `entry_layout`): the table.
        done (out, 1): for one clock; then, and until the next start:
        after (out, reads × `AFTER`), alone (out, 1): it has to wait for an empty pipeline.
        overlap (out, 1): in the section of stream ``number`` (out).
    """

    def __init__(self, address_bits: int, *, faults: Faults | None = None) -> None:
        self.faults = faults
        self._entry = entry_layout(address_bits)
        super().__init__(
            {
                "start": In(1),
                "owner": In(OWNER_BITS),
                "oldest": In(OWNER_BITS),
                "count": In(range(SLOTS + 1)),
                "reads": In(len(READS)),
                "used": In(len(STREAMS)),
                "at": Out(INDEX),
                "entry": In(self._entry),
                "done": Out(1),
                "after": Out(data.ArrayLayout(AFTER, len(READS))),
                "alone": Out(1),
                "overlap": Out(1),
                "number": Out(STREAM_BITS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        #: The section that is compared, and what it is compared with: a descriptor and a stream of it.
        mine = Signal(self._entry)
        number, stream = Signal(STREAM_BITS), Signal(STREAM_BITS)
        other, left = Signal(OWNER_BITS), Signal(range(SLOTS + 1))
        looked = Signal(data.StructLayout({"valid": 1, "own": 1, "owner": OWNER_BITS, "stream": STREAM_BITS}))
        theirs = Signal(self._entry)
        m.d.sync += looked.valid.eq(0)
        with m.FSM():
            with m.State("REST"), m.If(self.start):
                m.d.sync += [self.after.eq(0), self.alone.eq(0), self.overlap.eq(0), number.eq(0)]
                m.next = "LOAD"
            with m.State("LOAD"):
                m.d.comb += [self.at.stream.eq(number), self.at.slot.eq(self.owner)]
                m.d.sync += [mine.eq(self.entry), stream.eq(0), other.eq(self.oldest), left.eq(self.count)]
                with m.If(number == len(STREAMS)):
                    m.d.comb += self.done.eq(1)
                    m.next = "REST"
                with m.Elif(self.used.bit_select(number, 1)):
                    m.next = "LOOK"
                with m.Else():
                    m.d.sync += number.eq(number + 1)
            with m.State("LOOK"):
                m.d.comb += [self.at.stream.eq(stream), self.at.slot.eq(other)]
                own = left == 0
                m.d.sync += [
                    theirs.eq(self.entry),
                    looked.valid.eq(~own | (stream != number)),
                    looked.own.eq(own),
                    looked.owner.eq(other),
                    looked.stream.eq(stream),
                    stream.eq(stream + 1),
                ]
                # Of its own sections only those before it.
                with m.If(own & (stream == number)):
                    m.d.sync += number.eq(number + 1)
                    m.next = "LOAD"
                with m.Elif(stream == len(STREAMS) - 1):
                    m.d.sync += [stream.eq(0), other.eq(other + 1), left.eq(left - 1)]
        self._compare(m, mine, number, looked, theirs)
        return m

    def _compare(self, m: Module, mine: data.View, number: Signal, looked: data.View, theirs: data.View) -> None:
        overlap, equal, counts = Signal(), Signal(), Signal()
        by_another = Signal()
        writer = Signal(2)
        m.d.comb += [
            counts.eq(looked.valid & theirs.used),
            overlap.eq((mine.first <= theirs.last) & (theirs.first <= mine.last)),
            equal.eq((mine.first == theirs.first) & (mine.last == theirs.last)),
            by_another.eq(fault(self.faults, "scan.streams-in-any-order", looked.stream != number, Const(0, 1))),
        ]
        with m.Switch(looked.stream):
            for place, name in enumerate(WRITES):
                with m.Case(STREAMS.index(name)):
                    m.d.comb += writer.eq(place)
        partly = fault(self.faults, "scan.part-allowed", overlap & ~equal, Const(0, 1))
        wrong = partly | overlap & fault(self.faults, "scan.own-allowed", looked.own, Const(0, 1))
        written = counts & ~looked.own & equal & theirs.written
        with m.If(counts & wrong & ~self.overlap):
            m.d.sync += [self.overlap.eq(1), self.number.eq(number)]
        for place in range(len(READS)):
            earlier = fault(self.faults, "scan.first-writer", written, written & ~self.after[place].waits)
            with m.If(earlier & (number == place) & self.reads[place]):
                m.d.sync += [
                    self.after[place].waits.eq(1),
                    self.after[place].writer.eq(writer),
                    self.after[place].owner.eq(looked.owner),
                ]
        is_read = Cat(self.reads[place] & (number == place) for place in range(len(READS))).any()
        with m.If(written & by_another & ~is_read):
            m.d.sync += self.alone.eq(1)
