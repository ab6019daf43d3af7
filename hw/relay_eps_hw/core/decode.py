"""Taking a descriptor apart, a word a clock: what it asks for, and what in it is against the contract."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.rules import one_of, reserved_bits, scalar_is_bad, uses
from relay_eps_hw.core.scalars import PAIRS, PATTERN
from relay_eps_hw.core.sections import LENGTH_BITS, READS, WRITES
from relay_eps_hw.core.table import BLOCK_BITS, STREAM_BITS, entry_layout
from relay_eps_hw.core.words import WORD_BITS, bits_of, halves_of
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.interface.codes import Fault, Opcode
from relay_eps_hw.interface.descriptors import DESCRIPTOR, SCALARS, SOURCES, STREAMS
from relay_eps_hw.interface.operations import WIRE_HAS_FORMAT, WIRE_IS_OPTIONAL
from relay_eps_hw.lane.beat import SIGNED

FAULT_BITS = 8
SOURCE_BITS = 3
DESCRIPTORS = SOURCES.index("descriptors")
INDEX_BITS = (DESCRIPTOR.size * 8 // WORD_BITS - 1).bit_length()

#: A descriptor but for its sections and scalars; ``less`` is ``length`` less one.
DESCRIPTION = data.StructLayout(
    {
        "opcode": 8,
        "first": 1,
        "g_format": 2,
        "wire_format": 2,
        "tag": 32,
        "length": LENGTH_BITS,
        "less": LENGTH_BITS,
        "has_wire": 1,
    }
)
#: What is wrong with a word: a fault's code, and what met it.
WRONG = data.StructLayout({"found": 1, "code": FAULT_BITS, "source": SOURCE_BITS})


def _word(name: str) -> int:
    """The word of a descriptor in which a place lies."""
    return DESCRIPTOR[name].offset * 8 // WORD_BITS


class Decode(wiring.Component):
    """Keeps what a descriptor's words say, sends sections and scalars on, and finds faults in the clock of their word.

    Ports:
        word (in, 64), taken (in, 1): the next word.
        last (out, 1): it is the descriptor's last one.
        description (out, `DESCRIPTION`): what the words so far say.
        reads, writes, used (out): masks of streams, as `uses` has them; right once all words are there.
        number (out), section (out, `entry_layout`), has_section (out, 1): the word is this stream's address.
        scalars (out): which of `Scalars` the word holds.
        wrong (out, `WRONG`): of several faults in a word, the gravest.
    """

    def __init__(self, address_bits: int, *, faults: Faults | None = None) -> None:
        self._address_bits = address_bits
        self.faults = faults
        super().__init__(
            {
                "word": In(WORD_BITS),
                "taken": In(1),
                "last": Out(1),
                "description": Out(DESCRIPTION),
                "reads": Out(len(READS)),
                "writes": Out(len(WRITES)),
                "used": Out(len(STREAMS)),
                "number": Out(STREAM_BITS),
                "section": Out(entry_layout(address_bits)),
                "has_section": Out(1),
                "scalars": Out(PAIRS + 1),
                "wrong": Out(WRONG),
            }
        )
        self._index = Signal(INDEX_BITS)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        said = self.description
        masks = uses(m, said.opcode, said.first, said.has_wire)
        m.d.comb += [mask.eq(value) for mask, value in zip((self.reads, self.writes, self.used), masks, strict=True)]
        m.d.comb += self.last.eq(self._index.all())
        with m.If(self.taken):
            m.d.sync += self._index.eq(self._index + 1)
        self._operation(m)
        self._length(m)
        self._reserved(m)
        self._sections(m)
        self._scalars(m)
        return m

    def _at(self, name: str) -> Value:
        """Whether this word comes."""
        return self.taken & (self._index == _word(name))

    def _fault(self, m: Module, where: Value, code: Fault, source: Value | int = DESCRIPTORS) -> None:
        """The one that is named last counts."""
        with m.If(where):
            m.d.comb += [self.wrong.found.eq(1), self.wrong.code.eq(code), self.wrong.source.eq(source)]

    def _operation(self, m: Module) -> None:
        low, high = halves_of(self.word)
        said = {field.name: bits_of(low, field) for field in DESCRIPTOR["operation"].fields}
        here = self._at("operation")
        with m.If(here):
            m.d.sync += [self.description[name].eq(value) for name, value in said.items()]
            m.d.sync += self.description.tag.eq(high)
        self._fault(m, here & (said["g_format"].all() | said["wire_format"].all()), Fault.FORMAT)
        self._fault(m, here & ~one_of(said["opcode"], tuple(Opcode)), Fault.OPCODE)

    def _length(self, m: Module) -> None:
        low, _ = halves_of(self.word)
        here = self._at("length")
        with m.If(here):
            m.d.sync += [self.description.length.eq(low), self.description.less.eq(low - 1)]
        m.d.comb += self.scalars[PATTERN].eq(here)
        too_long = fault(self.faults, "check.too-long", low[LENGTH_BITS:].any(), Const(0, 1))
        is_barrier = self.description.opcode == Opcode.BARRIER
        self._fault(m, here & ((low == 0) | too_long) & ~is_barrier, Fault.LENGTH)

    def _reserved(self, m: Module) -> None:
        """Bits that have to be 0."""
        masks = {index: reserved_bits(2 * index, 2) for index in range(1 << INDEX_BITS)}
        is_set = Signal()
        with m.Switch(self._index):
            for mask in sorted(set(masks.values()) - {0}):
                with m.Case(*(index for index, each in masks.items() if each == mask)):
                    m.d.comb += is_set.eq((self.word & mask).any())
        ignored = fault(self.faults, "check.reserved-words", self._index != _word("operation"), Const(0, 1))
        self._fault(m, self.taken & is_set & ((self._index == _word("operation")) | ignored), Fault.OPCODE)

    def _sections(self, m: Module) -> None:
        """The section of whichever stream's address comes."""
        said, word = self.description, self.word
        blocks = self._address_bits - BLOCK_BITS
        first, above = word[BLOCK_BITS : self._address_bits], word[self._address_bits :]
        with m.Switch(self._index):
            for number, name in enumerate(STREAMS):
                with m.Case(_word(f"{name}_address")):
                    m.d.comb += [self.number.eq(number), self.has_section.eq(self.taken)]
        with m.If(self._at("wire_address")):
            m.d.sync += said.has_wire.eq(word.any())
        # Whether there is a wire copy shows only in its own address.
        is_optional = (self.number == STREAMS.index("wire")) & one_of(said.opcode, WIRE_IS_OPTIONAL)
        is_used = Signal()
        m.d.comb += is_used.eq(Mux(is_optional, word.any(), self.used.bit_select(self.number, 1)))
        written = {name: self.writes[number] for number, name in enumerate(WRITES)} | {"wire": Const(1, 1)}
        is_written = Cat(written.get(name, Const(0, 1)) for name in STREAMS).bit_select(self.number, 1)
        # (4n - 1) / 64, and half of it.
        offset, last = Signal(LENGTH_BITS), Signal(blocks + 1)
        m.d.comb += [
            offset.eq(Mux(is_half(self.number, said), said.less >> 5, said.less >> 4)),
            last.eq(first + offset),
            self.section.first.eq(first),
            self.section.last.eq(last),
            self.section.used.eq(is_used),
            self.section.written.eq(is_used & is_written),
        ]
        here = self.has_section & is_used
        beyond = fault(self.faults, "check.beyond", above.any() | last[-1], Const(0, 1))
        self._fault(m, here & beyond, Fault.ADDRESS, self.number)
        misaligned = fault(self.faults, "check.alignment", word[:BLOCK_BITS].any(), Const(0, 1))
        self._fault(m, here & misaligned, Fault.ALIGNMENT, self.number)

    def _scalars(self, m: Module) -> None:
        """Two scalars, or one: each may be wrong in the same ways."""
        here, may_be_negative, ignored = Signal(2), Signal(2), Signal(2)
        with m.Switch(self._index):
            for pair in range(PAIRS):
                names = SCALARS[2 * pair : 2 * pair + 2]
                with m.Case(_word(names[0])):
                    m.d.comb += [
                        self.scalars[pair].eq(self.taken),
                        here.eq((1 << len(names)) - 1),
                        may_be_negative.eq(sum((name in SIGNED) << half for half, name in enumerate(names))),
                        ignored.eq(
                            Cat(fault(self.faults, f"check.any-{name}", Const(0, 1), Const(1, 1)) for name in names)
                        ),
                    ]
        for half, bits in enumerate(halves_of(self.word)):
            bad = scalar_is_bad(bits, may_be_negative=may_be_negative[half])
            self._fault(m, self.taken & here[half] & bad & ~ignored[half], Fault.SCALAR)


def is_half(number: Value, said: data.View) -> Value:
    """Whether the elements of a stream have 16 bits, by a `DESCRIPTION`."""
    is_g, is_wire = number == STREAMS.index("g"), number == STREAMS.index("wire")
    return is_g & said.g_format.any() | is_wire & wire_is_half(said)


def wire_is_half(said: data.View) -> Value:
    """Whether those of its wire copy have."""
    return said.wire_format.any() & one_of(said.opcode, WIRE_HAS_FORMAT)
