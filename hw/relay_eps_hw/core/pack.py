"""From rows of the lanes to the beats of a memory port."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.sections import LENGTH_BITS, elements_layout
from relay_eps_hw.core.unpack import WORD, Steps, packed, row_layout
from relay_eps_hw.core.write_data import beat_layout
from relay_eps_hw.faults import Faults, fault


class Pack(wiring.Component):
    """The elements of sections, out of rows and into beats, through a register: a beat or a row in every clock.

    Each clock moves whichever of the two holds fewer elements; none is lost between sections that wait. Bytes beyond a
    section's end have no strobe, and may be anything.

    Ports:
        sections (in, stream of `elements_layout`).
        i (in, stream of `row_layout`): as many rows as hold the section.
        o (out, stream of `beat_layout`).

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
        self.steps = Steps(beat_bytes, lanes, half=half, length_bits=length_bits, faults=faults)
        self.has_half = half
        self.beat_bytes = beat_bytes
        self.faults = faults
        super().__init__(
            {
                "sections": In(stream.Signature(elements_layout(length_bits))),
                "i": In(stream.Signature(row_layout(lanes))),
                "o": Out(stream.Signature(beat_layout(beat_bytes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.steps = steps = self.steps
        wiring.connect(m, wiring.flipped(self.sections), steps.sections)
        free = Signal()
        row = self.i.payload.as_value()
        beat = Signal(8 * self.beat_bytes, reset_less=True)
        m.d.comb += [
            free.eq(fault(self.faults, "pack.beat-not-held", ~self.o.valid | self.o.ready, Const(1, 1))),
            steps.moves.eq(steps.some & self.i.valid & free),
            self.o.payload.data.eq(beat),
        ]
        if steps.beat_is_wider:
            whole = fault(self.faults, "pack.beats-only-when-full", steps.ends, steps.ends & ~steps.last)
            m.d.comb += self.i.ready.eq(steps.some & free)
            with m.If(steps.moves):
                m.d.sync += self.o.valid.eq(whole)
            steps.gather(m, beat, *self._parts(row))
        else:
            ends = fault(self.faults, "pack.rest-of-the-row-kept", steps.ends, steps.ends & ~steps.last)
            m.d.comb += self.i.ready.eq(steps.some & free & ends)
            with m.If(steps.moves):
                m.d.sync += [self.o.valid.eq(1), beat.eq(self._cut(steps.part(m, row)))]
        with m.If(~steps.moves & self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        self._strobes(m)
        return m

    def _cut(self, part: Signal) -> Value:
        """The beat that lies in a part of a row: in half mode in all of it, otherwise in one half."""
        if not self.has_half:
            return part
        low, high = part[: len(part) // 2], part[len(part) // 2 :]
        odd = fault(self.faults, "pack.always-the-first-part", self.steps.position[0], Const(0, 1))
        return Mux(self._is_half, packed(part), Mux(odd, high, low))

    def _parts(self, row: Value) -> tuple[Value, Value]:
        """What a row puts into an even part and into an odd part of a beat."""
        if not self.has_half:
            return row, row
        low, high = row[: len(row) // 2], row[len(row) // 2 :]
        return Mux(self._is_half, packed(row), low), Mux(self._is_half, packed(row), high)

    @property
    def _is_half(self) -> Value:
        return fault(self.faults, "pack.halves-not-packed", self.steps.half, Const(0, 1))

    def _strobes(self, m: Module) -> None:
        """All of them, but for a section's last beat."""
        # A unit is as many bytes as share a strobe: those of the smallest element. Sections end at one of its beat.
        unit = 2 if self.has_half else WORD // 8
        units = self.beat_bytes // unit
        final = Signal(range(units), reset_less=True)
        # The first unit of a beat is never beyond the end.
        strobes = Signal(units - 1, reset_less=True)
        section = self.sections.payload
        before = Signal(len(final))
        m.d.comb += before.eq(fault(self.faults, "pack.one-strobe-too-many", section.less, section.less + 1))
        with m.If(self.sections.valid & self.sections.ready):
            if self.has_half:
                m.d.sync += final.eq(Mux(section.half, before, Cat(Const(1, 1), before)))
            else:
                m.d.sync += final.eq(before)
        last = fault(self.faults, "pack.every-beat-is-cut", self.steps.last, Const(1, 1))
        last = fault(self.faults, "pack.no-beat-is-cut", last, Const(0, 1))
        with m.If(self.steps.moves):
            m.d.sync += strobes.eq(Cat(~last | (final >= number) for number in range(1, units)))
        m.d.comb += self.o.payload.strobes.eq(Cat(strobe.replicate(unit) for strobe in (Const(1, 1), *strobes)))
