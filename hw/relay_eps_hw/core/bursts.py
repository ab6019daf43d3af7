"""Cutting a section into bursts."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.shape import OWNER_BITS, Shape
from relay_eps_hw.faults import Faults, fault


class Bursts(wiring.Component):
    """The bursts of one section after another, a burst a clock, without a gap between sections.

    Every burst but a section's first starts at a multiple of ``limit`` beats, and none crosses one. These lie at 4 KiB
    boundaries too, so no burst crosses such a one.

    Ports:
        i (in, stream of `Shape.section`), o (out, stream of `Shape.burst`).
    """

    def __init__(self, shape: Shape, *, faults: Faults | None = None) -> None:
        self.limit = shape.limit
        self.faults = faults
        #: What is left of the section, and where that begins; nothing while ``left`` is 0.
        self.place = Signal(shape.place_bits)
        self.left = Signal(shape.count_bits)
        super().__init__({"i": In(stream.Signature(shape.section)), "o": Out(stream.Signature(shape.burst))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self.limit.bit_length() - 1
        low, high = self.place[:bits], self.place[bits:]
        # To the next multiple of the limit.
        room = Signal(bits + 1)
        m.d.comb += room.eq(self.limit - low)
        fits = ~self.left[bits + 1 :].any() & (self.left[: bits + 1] <= room)
        last = fault(self.faults, "bursts.one-too-many", fits, fits & (self.left[: bits + 1] != room))
        beats = Mux(
            fits, self.left[: bits + 1], fault(self.faults, "bursts.not-cut", room, Const(self.limit, bits + 1))
        )
        some = self.left.any()
        owner = Signal(OWNER_BITS)
        m.d.comb += [
            self.o.valid.eq(some),
            self.o.payload.place.eq(self.place),
            self.o.payload.beats.eq(beats),
            self.o.payload.last.eq(last),
            self.o.payload.owner.eq(owner),
            self.i.ready.eq(~some | self.o.ready & fits),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                self.place.eq(self.i.payload.place),
                self.left.eq(self.i.payload.beats),
                owner.eq(self.i.payload.owner),
            ]
        with m.Elif(self.o.ready & some):
            m.d.sync += [self.place.eq(Cat(Const(0, bits), high + 1)), self.left.eq(self.left - beats)]
        return m
