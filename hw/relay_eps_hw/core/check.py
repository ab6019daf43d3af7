"""Taking descriptors apart: each is checked, word by word, against the contract and against those before it."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.fetch import WORD_BITS
from relay_eps_hw.core.rules import one_of, reserved_bits, scalar_is_bad, uses
from relay_eps_hw.core.scalars import PAIRS, PATTERN
from relay_eps_hw.core.scan import Scan
from relay_eps_hw.core.sections import READS, SLOT_BITS, WRITES, order_layout
from relay_eps_hw.core.shape import COUNT_BITS, OWNER_BITS, SLOTS, Shape
from relay_eps_hw.core.table import BLOCK_BITS, STREAM_BITS, Table
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.interface.codes import Fault, Opcode
from relay_eps_hw.interface.descriptors import DESCRIPTOR, LONGEST, SCALARS, SOURCES, STREAMS
from relay_eps_hw.interface.operations import LANE_OPERATIONS, WIRE_HAS_FORMAT, WIRE_IS_OPTIONAL
from relay_eps_hw.lane.beat import SIGNED

FAULT_BITS = 8
SOURCE_BITS = 3
DESCRIPTORS = SOURCES.index("descriptors")

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
ENTRY = data.StructLayout({"tag": 32, "length": 30, "writes": len(WRITES), "half": 1})


def found_layout(address_bits: int) -> data.StructLayout:
    """A fault in a descriptor: its code, what met it, and the section's address if it was one, in bytes."""
    return data.StructLayout(
        {"found": 1, "code": FAULT_BITS, "source": SOURCE_BITS, "address": address_bits, "tag": 32}
    )


def _word(name: str) -> int:
    """The word of a descriptor in which a place lies."""
    return DESCRIPTOR[name].offset * 8 // WORD_BITS


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
        found (out, `found_layout`): its fault.
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
        self._opcode, self._first = Signal(8), Signal()
        self._g_format, self._wire_format = Signal(2), Signal(2)
        self._length, self._less = Signal(30), Signal(30)
        self._tag = Signal(32)
        self._has_wire = Signal()
        self._index = Signal(range(DESCRIPTOR.size * 8 // WORD_BITS))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = Table(self._shape.address_bits)
        m.submodules.scan = scan = Scan(self._shape.address_bits, faults=self.faults)
        masks = uses(m, self._opcode, self._first, self._has_wire)
        reads, writes, used = masks
        number = Signal(STREAM_BITS)
        m.d.comb += [
            self.word.eq(self.i.payload),
            scan.owner.eq(self.number),
            scan.oldest.eq(self.oldest),
            scan.count.eq(self.count),
            scan.reads.eq(reads),
            scan.used.eq(used),
            scan.entry.eq(table.o),
            table.at.eq(scan.at),
            table.index.slot.eq(self.number),
        ]
        self._describe(m, reads, writes)
        with m.FSM():
            with m.State("WORDS"):
                room = fault(self.faults, "check.slot-not-free", self.count != SLOTS, Const(1, 1))
                m.d.comb += self.i.ready.eq(room)
                with m.If(self.i.valid & self.i.ready):
                    self._words(m, table, used, writes)
                    m.d.sync += self._index.eq(self._index + 1)
                    with m.If(self._index.all()):
                        m.d.comb += scan.start.eq(1)
                        m.next = "SCAN"
                # A fault is known in the clock after its word.
                with m.If(self.found.found):
                    m.d.comb += self.i.ready.eq(0)
                    m.next = "FAULT"
            with m.State("SCAN"):
                with m.If(self.found.found):
                    m.next = "FAULT"
                with m.Elif(scan.done):
                    m.d.sync += number.eq(0)
                    m.next = "WAIT"
            with m.State("WAIT"):
                alone = fault(self.faults, "check.not-alone", scan.alone, Const(0, 1))
                barrier = fault(self.faults, "check.barrier-does-not-wait", self._opcode == Opcode.BARRIER, Const(0, 1))
                with m.If(scan.overlap):
                    address = Cat(Const(0, BLOCK_BITS), table.o.first)
                    m.d.comb += [table.at.slot.eq(self.number), table.at.stream.eq(scan.number)]
                    self._fault(m, Const(1), Fault.OVERLAP, scan.number, address)
                    m.next = "FAULT"
                with m.Elif(~(alone | barrier) | (self.count == 0)):
                    m.next = "ORDERS"
            with m.State("ORDERS"):
                m.d.comb += [table.at.slot.eq(self.number), table.at.stream.eq(number)]
                self._order(m, table, scan, number, reads, writes)
                m.d.sync += number.eq(number + 1)
                with m.If(number == len(STREAMS) - 1):
                    m.next = "ISSUE"
            with m.State("ISSUE"):
                m.d.comb += self.issue.eq(self.going)
                with m.If(self.going):
                    m.d.sync += self.number.eq(self.number + 1)
                    m.next = "WORDS"
            with m.State("FAULT"):
                pass
        return m

    def _describe(self, m: Module, reads: Value, writes: Value) -> None:
        """What the operation is, once all of it has been read."""
        m.d.comb += [
            self.operation.opcode.eq(self._opcode),
            self.operation.first.eq(self._first),
            self.operation.g_format.eq(self._g_format),
            self.operation.wire_format.eq(self._wire_format),
            self.operation.less.eq(self._less),
            self.operation.reads.eq(reads),
            self.operation.writes.eq(writes),
            self.operation.in_lanes.eq(one_of(self._opcode, LANE_OPERATIONS)),
            self.operation.slot.eq(self.number),
            self.entry.tag.eq(self._tag),
            self.entry.length.eq(self._length),
            self.entry.writes.eq(writes),
            self.entry.half.eq(self._wire_is_half()),
        ]

    def _wire_is_half(self) -> Value:
        return self._wire_format.any() & one_of(self._opcode, WIRE_HAS_FORMAT)

    def _is_half(self, number: Value) -> Value:
        """Whether a stream's elements have 16 bits."""
        is_g, is_wire = number == STREAMS.index("g"), number == STREAMS.index("wire")
        return is_g & self._g_format.any() | is_wire & self._wire_is_half()

    def _fault(self, m: Module, where: Value, code: Fault, source: Value | int, address: Value | int = 0) -> None:
        """The first fault found stays; of several in a clock, the one that is named last."""
        with m.If(where & ~self.found.found):
            m.d.sync += [
                self.found.found.eq(1),
                self.found.code.eq(code),
                self.found.source.eq(source),
                self.found.address.eq(address),
                self.found.tag.eq(self._tag),
            ]

    def _words(self, m: Module, table: Table, used: Value, writes: Value) -> None:
        """What is done with each word of a descriptor."""
        word, low, high = self.word, self.word[:32], self.word[32:]
        reserved = {index: reserved_bits(2 * index, 2) for index in range(1 << len(self._index))}
        with m.Switch(self._index):
            with m.Case(_word("operation")):
                opcode, first, g_format, wire_format = (
                    low[bits.low : bits.low + bits.width] for bits in DESCRIPTOR["operation"].fields
                )
                m.d.sync += [
                    self._opcode.eq(opcode),
                    self._first.eq(first),
                    self._g_format.eq(g_format),
                    self._wire_format.eq(wire_format),
                    self._tag.eq(high),
                ]
                known = one_of(opcode, tuple(Opcode))
                set_ = (word & reserved[0]).any()
                self._fault(m, g_format.all() | wire_format.all(), Fault.FORMAT, DESCRIPTORS)
                self._fault(m, ~known | set_, Fault.OPCODE, DESCRIPTORS)
                with m.If(~self.found.found):
                    m.d.sync += self.found.tag.eq(high)
            with m.Case(_word("length")):
                m.d.sync += [self._length.eq(low), self._less.eq(low - 1)]
                m.d.comb += self.scalars_write[PATTERN].eq(1)
                too_long = fault(self.faults, "check.too-long", low > LONGEST, Const(0, 1))
                wrong = (low == 0) | too_long
                self._fault(m, wrong & (self._opcode != Opcode.BARRIER), Fault.LENGTH, DESCRIPTORS)
            for number, name in enumerate(STREAMS):
                with m.Case(_word(f"{name}_address")):
                    self._address(m, table, number, used, writes)
            for pair in range(PAIRS):
                with m.Case(_word(SCALARS[2 * pair])):
                    m.d.comb += self.scalars_write[pair].eq(1)
                    if reserved[_word(SCALARS[2 * pair])]:
                        self._reserved(m, word, reserved[_word(SCALARS[2 * pair])])
                    for half, name in zip((low, high), SCALARS[2 * pair : 2 * pair + 2], strict=False):
                        bad = scalar_is_bad(half, may_be_negative=name in SIGNED)
                        self._fault(
                            m, fault(self.faults, f"check.any-{name}", bad, Const(0, 1)), Fault.SCALAR, DESCRIPTORS
                        )
            with m.Default():
                self._reserved(m, word, (1 << WORD_BITS) - 1)

    def _reserved(self, m: Module, word: Value, mask: int) -> None:
        is_set = fault(self.faults, "check.reserved-words", (word & mask).any(), Const(0, 1))
        self._fault(m, is_set, Fault.OPCODE, DESCRIPTORS)

    def _address(self, m: Module, table: Table, number: int, used: Value, writes: Value) -> None:
        """A section's address, in the clock in which it comes."""
        name = STREAMS[number]
        blocks = self._shape.address_bits - BLOCK_BITS
        first = self.word[BLOCK_BITS : BLOCK_BITS + blocks]
        beyond = self.word[BLOCK_BITS + blocks :].any() if self._shape.address_bits < WORD_BITS else Const(0, 1)
        is_used = Signal(name=f"{name}_is_used")
        m.d.comb += is_used.eq(used[number])
        if name == "wire":
            # Whether there is a wire copy shows only in its own address.
            m.d.sync += self._has_wire.eq(self.word.any())
            m.d.comb += is_used.eq(Mux(one_of(self._opcode, WIRE_IS_OPTIONAL), self.word.any(), used[number]))
        # (4n - 1) / 64, and half of it.
        offset = Signal(30, name=f"{name}_offset")
        m.d.comb += offset.eq(Mux(self._is_half(Const(number, STREAM_BITS)), self._less >> 5, self._less >> 4))
        last = Signal(blocks + 1, name=f"{name}_last")
        is_written = Const(1, 1) if name == "wire" else writes[WRITES.index(name)] if name in WRITES else Const(0, 1)
        m.d.comb += [
            last.eq(first + offset),
            table.write.eq(1),
            table.index.stream.eq(number),
            table.entry.first.eq(first),
            table.entry.last.eq(last),
            table.entry.used.eq(is_used),
            table.entry.written.eq(is_used & is_written),
        ]
        outside = fault(self.faults, "check.beyond", beyond | last[-1], Const(0, 1))
        aligned = ~self.word[:BLOCK_BITS].any()
        address = self.word[: self._shape.address_bits]
        self._fault(m, is_used & outside, Fault.ADDRESS, number, address)
        misaligned = fault(self.faults, "check.alignment", ~aligned, Const(0, 1))
        self._fault(m, is_used & misaligned, Fault.ALIGNMENT, number, address)

    def _order(self, m: Module, table: Table, scan: Scan, number: Value, reads: Value, writes: Value) -> None:
        """The section of one stream, to whoever reads or writes it."""
        shape = self._shape
        half = self._is_half(number)
        beats = Mux(half, self._less >> (shape.below - 1), self._less >> (shape.below - 2))
        section = self.order.section
        m.d.comb += [
            section.place.eq(Cat(Const(0, BLOCK_BITS - shape.below), table.o.first)),
            section.beats.eq(beats + 1),
            section.owner.eq(self.number),
            self.order.elements.length.eq(self._length),
            self.order.elements.half.eq(half),
        ]
        for mask, every, chosen in ((reads, READS, self.reads), (writes, WRITES, self.writes)):
            for place, stream_name in enumerate(every):
                m.d.comb += chosen[place].eq(mask[place] & (number == STREAMS.index(stream_name)))
        for place, stream_name in enumerate(READS):
            with m.If(number == STREAMS.index(stream_name)):
                m.d.comb += self.order.after.eq(scan.after[place])
