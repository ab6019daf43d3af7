"""Fetching descriptors ahead of their turn."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.movers import ReadMover
from relay_eps_hw.core.shape import Shape
from relay_eps_hw.core.unpack import Unpack
from relay_eps_hw.core.words import WORD_BITS, WORD_LANES
from relay_eps_hw.faults import Faults
from relay_eps_hw.interface.descriptors import DESCRIPTOR

#: Descriptors that are fetched before they are looked at. With the one that is being taken apart they stay within the
#: sequence numbers, so a fault's owner says which one it was.
AHEAD = 4


class Fetch(wiring.Component):
    """Reads a batch's descriptors in order and hands them over in words of 64 bits.

    Ports:
        address (in, place bits), count (in, 31): the batch; must not change.
        stop (in, 1): ask for no more.
        request, valid, beat: to and from a `ReadPort`, as `ReadMover` has them.
        o (out, stream of 64 bits).
    """

    def __init__(self, shape: Shape, *, faults: Faults | None = None) -> None:
        self._beats = DESCRIPTOR.size // shape.beat_bytes
        self._shape = Shape(
            shape.beat_bytes, min(shape.limit, self._beats), shape.address_bits, self._beats.bit_length()
        )
        self._faults = faults
        super().__init__(
            {
                "address": In(shape.place_bits),
                "count": In(31),
                "stop": In(1),
                "request": Out(stream.Signature(shape.burst)),
                "valid": In(1),
                "beat": In(shape.beat_bits),
                "o": Out(stream.Signature(WORD_BITS)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.mover = mover = ReadMover(self._shape, AHEAD * self._beats, hazards=False, faults=self._faults)
        less = DESCRIPTOR.size // 4 - 1
        m.submodules.words = words = Unpack(
            self._shape.beat_bytes, WORD_LANES, half=False, length_bits=less.bit_length()
        )
        asked = Signal(31)
        section = mover.sections.payload
        m.d.comb += [
            section.place.eq(self.address + asked * self._beats),
            section.final.eq(section.place + self._beats - 1),
            section.owner.eq(asked),
            mover.sections.valid.eq((asked != self.count) & ~self.stop),
            mover.valid.eq(self.valid),
            mover.beat.eq(self.beat),
            words.sections.valid.eq(1),
            words.sections.payload.less.eq(less),
            self.o.valid.eq(words.o.valid),
            self.o.payload.eq(words.o.payload),
            words.o.ready.eq(self.o.ready),
            self.request.valid.eq(mover.request.valid),
            mover.request.ready.eq(self.request.ready),
            *(
                self.request.payload[name].eq(mover.request.payload[name])
                for name in ("place", "beats", "last", "owner")
            ),
        ]
        wiring.connect(m, mover.o, words.i)
        with m.If(mover.sections.valid & mover.sections.ready):
            m.d.sync += asked.eq(asked + 1)
        return m
