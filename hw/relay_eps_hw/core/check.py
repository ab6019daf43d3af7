"""Checking descriptors: each against the contract, and against those before it that are in the pipeline."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.decode import DESCRIPTION, FAULT_BITS, SOURCE_BITS, Decode, is_half, wire_is_half
from relay_eps_hw.core.rules import one_of
from relay_eps_hw.core.scalars import PAIRS
from relay_eps_hw.core.scan import Scan
from relay_eps_hw.core.sections import LENGTH_BITS, READS, SLOT_BITS, WRITES, order_layout
from relay_eps_hw.core.shape import COUNT_BITS, OWNER_BITS, SLOTS, Shape
from relay_eps_hw.core.table import BLOCK_BITS, STREAM_BITS, Table
from relay_eps_hw.core.words import WORD_BITS
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.interface.codes import Fault, Opcode
from relay_eps_hw.interface.descriptors import STREAMS
from relay_eps_hw.interface.operations import LANE_OPERATIONS

#: What the lanes are to do with an operation's elements.
OPERATION = data.StructLayout(
    {
        "opcode": 4,
        "first": 1,
        "g_format": 2,
        "wire_format": 2,
        "less": COUNT_BITS,
        "reads": len(READS),
        "writes": len(WRITES),
        "in_lanes": 1,
        "slot": SLOT_BITS,
    }
)
#: What is kept of a descriptor until its record is written.
ENTRY = data.StructLayout({"tag": 32, "length": LENGTH_BITS, "writes": len(WRITES), "half": 1})


def found_layout(address_bits: int) -> data.StructLayout:
    """A fault in a descriptor: its code, what met it, and, if that was a section, the section's address in bytes."""
    return data.StructLayout({"found": 1, "code": FAULT_BITS, "source": SOURCE_BITS, "address": address_bits})


class Check(wiring.Component):
    """Reads descriptors, finds their faults, and gives their sections and operations to those who carry them out.

    A descriptor is looked at once there is a free slot. After a fault no more are taken.

    Ports:
        i (in, stream of 64 bits): descriptors.
        going (in, 1): descriptors may enter the pipeline.
        oldest (in, 3), count (in): those in the pipeline.
        number (out, 3): the descriptor that is looked at, or comes next.
        scalars_write, word (out): what `Scalars` writes, to the slot of ``number``.
        order (out, `order_layout`): a section; reads (out), writes (out): whose it is, by stream, for one clock.
        operation (out, `OPERATION`), entry (out, `ENTRY`), issue (out, 1): the descriptor enters the pipeline.
        found (out, `found_layout`): the fault of the descriptor that is looked at; ``entry`` has its tag.
    """

    def __init__(self, shape: Shape, *, faults: Faults | None = None) -> None:
        self._shape = shape
        self.faults = faults
        super().__init__(
            {
                "i": In(stream.Signature(WORD_BITS)),
                "going": In(1),
                "oldest": In(OWNER_BITS),
                "count": In(range(SLOTS + 1)),
                "number": Out(OWNER_BITS),
                "scalars_write": Out(PAIRS + 1),
                "word": Out(WORD_BITS),
                "order": Out(order_layout(shape)),
                "reads": Out(len(READS)),
                "writes": Out(len(WRITES)),
                "operation": Out(OPERATION),
                "entry": Out(ENTRY),
                "issue": Out(1),
                "found": Out(found_layout(shape.address_bits)),
            }
        )
        self._said = Signal(DESCRIPTION)
        #: The stream whose section is given out.
        self._stream = Signal(STREAM_BITS)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.decode = decode = Decode(self._shape.address_bits, faults=self.faults)
        m.submodules.table = table = Table(self._shape.address_bits)
        m.submodules.scan = scan = Scan(self._shape.address_bits, faults=self.faults)
        m.d.comb += [
            self.word.eq(self.i.payload),
            decode.word.eq(self.i.payload),
            decode.taken.eq(self.i.valid & self.i.ready),
            self._said.eq(decode.description),
            self.scalars_write.eq(decode.scalars),
            table.index.slot.eq(self.number),
            table.index.stream.eq(decode.number),
            table.entry.eq(decode.section),
            table.write.eq(decode.has_section),
            scan.owner.eq(self.number),
            scan.oldest.eq(self.oldest),
            scan.count.eq(self.count),
            scan.reads.eq(decode.reads),
            scan.used.eq(decode.used),
            scan.entry.eq(table.o),
            table.at.eq(scan.at),
        ]
        self._describe(m, decode)
        self._order(m, table, scan)
        with m.FSM():
            with m.State("WORDS"):
                room = fault(self.faults, "check.slot-not-free", self.count != SLOTS, Const(1, 1))
                # A fault is known in the clock after its word.
                m.d.comb += self.i.ready.eq(room & ~self.found.found)
                m.d.comb += scan.start.eq(decode.taken & decode.last)
                with m.If(scan.start):
                    m.next = "SCAN"
            with m.State("SCAN"), m.If(scan.done & ~self.found.found):
                m.next = "WAIT"
            with m.State("WAIT"):
                alone = fault(self.faults, "check.not-alone", scan.alone, Const(0, 1))
                is_barrier = self._said.opcode == Opcode.BARRIER
                barrier = fault(self.faults, "check.barrier-does-not-wait", is_barrier, Const(0, 1))
                with m.If(~self.found.found & (~(alone | barrier) | (self.count == 0))):
                    m.next = "ORDERS"
            with m.State("ORDERS"):
                m.d.comb += [table.at.slot.eq(self.number), table.at.stream.eq(self._stream)]
                self._give(m, decode)
                m.d.sync += self._stream.eq(self._stream + 1)
                with m.If(self._stream == len(STREAMS) - 1):
                    m.d.sync += self._stream.eq(0)
                    m.next = "ISSUE"
            with m.State("ISSUE"):
                m.d.comb += self.issue.eq(self.going)
                with m.If(self.going):
                    m.d.sync += self.number.eq(self.number + 1)
                    m.next = "WORDS"
        self._find(m, decode, table, scan)
        return m

    def _describe(self, m: Module, decode: Decode) -> None:
        """What the operation is, once all of it has been read."""
        said, operation = self._said, self.operation
        m.d.comb += [
            *(operation[name].eq(said[name]) for name in ("opcode", "first", "g_format", "wire_format", "less")),
            operation.reads.eq(decode.reads),
            operation.writes.eq(decode.writes),
            operation.in_lanes.eq(one_of(said.opcode, LANE_OPERATIONS)),
            operation.slot.eq(self.number),
            self.entry.tag.eq(said.tag),
            self.entry.length.eq(said.length),
            self.entry.writes.eq(decode.writes),
            self.entry.half.eq(wire_is_half(said)),
        ]

    def _order(self, m: Module, table: Table, scan: Scan) -> None:
        """The section of one stream, as whoever reads or writes it wants it."""
        below, section = self._shape.below, self.order.section
        half = is_half(self._stream, self._said)
        less = self._said.less
        m.d.comb += [
            section.place.eq(Cat(Const(0, BLOCK_BITS - below), table.o.first)),
            section.final.eq(section.place + Mux(half, less >> (below - 1), less >> (below - 2))),
            section.owner.eq(self.number),
            self.order.elements.less.eq(less),
            self.order.elements.half.eq(half),
        ]
        for place, name in enumerate(READS):
            with m.If(self._stream == STREAMS.index(name)):
                m.d.comb += self.order.after.eq(scan.after[place])

    def _give(self, m: Module, decode: Decode) -> None:
        """Whose section it is."""
        for mask, every, chosen in ((decode.reads, READS, self.reads), (decode.writes, WRITES, self.writes)):
            for place, name in enumerate(every):
                m.d.comb += chosen[place].eq(mask[place] & (self._stream == STREAMS.index(name)))

    def _find(self, m: Module, decode: Decode, table: Table, scan: Scan) -> None:
        """The descriptor's first fault stays, and with it the section in the table."""
        found = self.found
        #: Of the section's address, what the table does not hold.
        rest = Signal(BLOCK_BITS)
        with m.If(found.found):
            m.d.comb += [table.at.slot.eq(self.number), table.at.stream.eq(found.source)]
        with m.Elif(decode.wrong.found):
            m.d.sync += [found[name].eq(decode.wrong[name]) for name in ("found", "code", "source")]
            m.d.sync += rest.eq(self.word)
        with m.Elif(scan.overlap):
            m.d.sync += [found.found.eq(1), found.code.eq(Fault.OVERLAP), found.source.eq(scan.number), rest.eq(0)]
        m.d.comb += found.address.eq(Cat(rest, table.o.first))
