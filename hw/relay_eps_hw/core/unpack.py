"""From the beats of a memory port to rows of the lanes, and what that has in common with the way back, `pack.Pack`.

A section's elements lie in beats one after another, little-endian, from the start of its first beat. A row is as many
elements as there are lanes. Beats and rows hold powers of two, so one is always a whole number of the others: the wider
of the two is read, or written, in equal parts, and nothing is ever shifted by another amount.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.sections import LENGTH_BITS, elements_layout
from relay_eps_hw.core.shape import check_beat
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.lane.beat import check_lanes

#: Bits of an element in a row, and of one in half mode.
WORD = 32
HALF = WORD // 2


def row_layout(lanes: int) -> data.ArrayLayout:
    """Elements for all lanes, the first one in the lowest bits."""
    return data.ArrayLayout(WORD, lanes)


def packed(words: Value) -> Value:
    """The low halves of 32-bit elements, side by side."""
    return Cat(words[at : at + HALF] for at in range(0, len(words), WORD))


def spread(halves: Value) -> Value:
    """16-bit elements as the low halves of 32-bit ones; the high halves are 0."""
    return Cat(Cat(halves[at : at + HALF], Const(0, HALF)) for at in range(0, len(halves), HALF))


class Steps(wiring.Component):
    """Counts through sections in steps: in one step goes a beat or a row, whichever holds fewer elements.

    The wider of the two is divided into parts: of one step of the mode with the smaller steps. A step of the other mode
    covers two, an even one and the odd one behind it. Where there is no half mode, every step covers one.

    Ports:
        sections (in, stream of `elements_layout`): one is taken with the last step of the one before, so that no clock
            is lost.
        moves (in, 1): the step is made; only while ``some``.
        some (out, 1): there is a step to be made.
        last (out, 1): it is the section's last one.
        ends (out, 1): it is the last one of the wider side, or of the section.
        half (out, 1): the section's; always 0 where there is no half mode.
        position (out): the part that the step begins with.

    Attributes:
        beat_is_wider: a beat holds at least as many 32-bit elements as a row.
        past: counts up, to all ones in a section's last step.

    Args:
        beat_bytes, lanes, half, length_bits: as for `Unpack`.
    """

    def __init__(
        self,
        beat_bytes: int,
        lanes: int,
        *,
        half: bool,
        length_bits: int = LENGTH_BITS,
        faults: Faults | None = None,
    ) -> None:
        check_beat(beat_bytes)
        check_lanes(lanes)
        words = 8 * beat_bytes // WORD
        self.has_half = half
        self.faults = faults
        self.beat_is_wider = words >= lanes
        parts = max(words, lanes) // min(words, lanes)
        # Rows of halves take half of a beat's bits. Beats of halves fill twice as much of a row: two parts.
        self.parts = 2 * parts if half and self.beat_is_wider else parts
        self._shift = (min(words, lanes)).bit_length() - 1
        self._half_shift = (min(2 * words, lanes)).bit_length() - 1
        self._length_bits = length_bits
        self.past = Signal(length_bits - self._shift, reset_less=True)
        super().__init__(
            {
                "sections": In(stream.Signature(elements_layout(length_bits))),
                "moves": In(1),
                "some": Out(1),
                "last": Out(1),
                "ends": Out(1),
                "half": Out(1),
                "position": Out(self.parts.bit_length() - 1),
            }
        )

    @property
    def _two(self) -> Value:
        """Whether a step covers two parts."""
        if not self.has_half:
            return Const(0, 1)
        return ~self.half if self.beat_is_wider else self.half

    def covers(self, part: int) -> Value:
        """Whether the step covers this part of the wider side."""
        if self.parts == 1:
            return Const(1, 1)
        return ((self.position | self._two) if part % 2 else self.position) == part

    def part(self, m: Module, wide: Value) -> Signal:
        """The part of ``wide`` that the step covers; in a design with half mode, the even part and the odd one."""
        # Bit by bit: linters take offence at the shift that a word's selection becomes.
        for bit in reversed(self.position[1:] if self.has_half else self.position):
            wide = Mux(bit, wide[len(wide) // 2 :], wide[: len(wide) // 2])
        part = Signal(len(wide))
        m.d.comb += part.eq(wide)
        return part

    def gather(self, m: Module, wide: Signal, even: Value, odd: Value) -> None:
        """Put a step's even part and its odd part in their places in the register ``wide``."""
        for part in range(self.parts):
            with m.If(self.moves & self.covers(part)):
                m.d.sync += wide.word_select(part, len(even)).eq(odd if part % 2 else even)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        section = self.sections.payload
        enters = Signal()
        m.d.comb += [
            self.sections.ready.eq(~self.some | self.moves & self.last),
            enters.eq(self.sections.valid & self.sections.ready),
            self.ends.eq(self.last | (self.position | self._two).all() if self.parts > 1 else Const(1, 1)),
        ]

        rest, soon = Signal(self._length_bits), Signal()
        m.d.comb += [
            rest.eq(section.less >> self._shift),
            soon.eq(fault(self.faults, "steps.one-too-many", self.past[1:].all() & ~self.past[0], self.past.all())),
        ]
        if self.has_half and self._half_shift != self._shift:
            with m.If(section.half):
                m.d.comb += rest.eq(section.less >> self._half_shift)
        with m.If(enters):
            m.d.sync += [self.some.eq(1), self.past.eq(~rest), self.last.eq(rest == 0)]
        with m.Elif(self.moves):
            m.d.sync += [self.some.eq(~self.last), self.past.eq(self.past + 1), self.last.eq(soon)]
        if self.has_half:
            # Outputs are reset, which does no harm here: there is one bit of it.
            with m.If(enters):
                m.d.sync += self.half.eq(section.half)
        if self.parts > 1:
            # A section that has ended within the wider side leaves the rest of it.
            cleared = fault(self.faults, "steps.position-kept", self.last, Const(0, 1))
            with m.If(self.moves):
                m.d.sync += self.position.eq(Mux(cleared, 0, self.position + Mux(self._two, 2, 1)))
        return m


class Unpack(wiring.Component):
    """The elements of sections, out of beats and into rows, through a register: a beat or a row in every clock.

    Each clock moves whichever of the two holds fewer elements; none is lost between sections that wait. What a last
    beat holds beyond its section goes with it, and the elements of a last row beyond the section may be anything.

    Ports:
        sections (in, stream of `elements_layout`).
        i (in, stream): the beats, as many as hold the section.
        o (out, stream of `row_layout`).

    Args:
        beat_bytes: bytes of a beat, one of `BEAT_BYTES`; ValueError for others.
        lanes: elements of a row, one of `LANE_COUNTS`; ValueError for others.
        half: whether there is half mode; if not, ``half`` of a section is ignored.
        length_bits: of a section's length.
    """

    def __init__(
        self,
        beat_bytes: int,
        lanes: int,
        *,
        half: bool,
        length_bits: int = LENGTH_BITS,
        faults: Faults | None = None,
    ) -> None:
        self.steps = Steps(beat_bytes, lanes, half=half, length_bits=length_bits, faults=faults)
        self.has_half = half
        self.faults = faults
        super().__init__(
            {
                "sections": In(stream.Signature(elements_layout(length_bits))),
                "i": In(stream.Signature(8 * beat_bytes)),
                "o": Out(stream.Signature(row_layout(lanes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.steps = steps = self.steps
        wiring.connect(m, wiring.flipped(self.sections), steps.sections)
        free = Signal()
        row = Signal(len(self.o.payload.as_value()), reset_less=True)
        m.d.comb += [
            free.eq(fault(self.faults, "unpack.row-not-held", ~self.o.valid | self.o.ready, Const(1, 1))),
            steps.moves.eq(steps.some & self.i.valid & free),
            self.o.payload.as_value().eq(row),
        ]
        if steps.beat_is_wider:
            ends = fault(self.faults, "unpack.rest-of-the-beat-kept", steps.ends, steps.ends & ~steps.last)
            m.d.comb += self.i.ready.eq(steps.some & free & ends)
            with m.If(steps.moves):
                m.d.sync += [self.o.valid.eq(1), row.eq(self._cut(m, steps.part(m, self.i.payload)))]
        else:
            whole = fault(self.faults, "unpack.rows-only-when-full", steps.ends, steps.ends & ~steps.last)
            m.d.comb += self.i.ready.eq(steps.some & free)
            with m.If(steps.moves):
                m.d.sync += self.o.valid.eq(whole)
            steps.gather(m, row, *self._parts(self.i.payload))
        with m.If(~steps.moves & self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        return m

    def _cut(self, m: Module, part: Signal) -> Value:
        """The row that lies in a part of a beat, or, in half mode, in one half of it."""
        if not self.has_half:
            return part
        low, high = part[: len(part) // 2], part[len(part) // 2 :]
        odd = fault(self.faults, "unpack.always-the-first-half", self.steps.position[0], Const(0, 1))
        halves = Signal(len(low))
        m.d.comb += halves.eq(Mux(odd, high, low))
        return Mux(self._is_half, spread(halves), part)

    def _parts(self, beat: Value) -> tuple[Value, Value]:
        """What a beat puts into an even part and into an odd part of a row."""
        if not self.has_half:
            return beat, beat
        low, high = beat[: len(beat) // 2], beat[len(beat) // 2 :]
        high = fault(self.faults, "unpack.the-first-half-twice", high, low)
        return Mux(self._is_half, spread(low), beat), Mux(self._is_half, spread(high), beat)

    @property
    def _is_half(self) -> Value:
        return fault(self.faults, "unpack.halves-not-spread", self.steps.half, Const(0, 1))
