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
        #: Where what is left of the section begins, if there is ``some``; and the lower bits of where it ends.
        self.some = Signal()
        self.place = Signal(shape.place_bits)
        self.final = Signal(shape.section["final"].shape)
        super().__init__({"i": In(stream.Signature(shape.section)), "o": Out(stream.Signature(shape.burst))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self.limit.bit_length() - 1
        low, high = self.place[:bits], self.place[bits:]
        # The last burst ends in the same multiple of the limit as the section.
        is_last = Signal()
        m.d.comb += is_last.eq(high[: len(self.final) - bits] == self.final[bits:])
        top = Mux(is_last, self.final[:bits], self.limit - 1) if bits else Const(0, 1)
        cut = fault(self.faults, "bursts.not-cut", low, Mux(is_last, low, 0)) if bits else Const(0, 1)
        beats = Signal(bits + 1)
        last = fault(self.faults, "bursts.one-too-many", is_last, is_last & (self.final[:bits] != self.limit - 1))
        owner = Signal(OWNER_BITS)
        m.d.comb += [
            beats.eq(top - cut + 1),
            self.o.valid.eq(self.some),
            self.o.payload.place.eq(self.place),
            self.o.payload.beats.eq(beats),
            self.o.payload.last.eq(last),
            self.o.payload.owner.eq(owner),
            self.i.ready.eq(~self.some | self.o.ready & is_last),
        ]
        with m.If(self.i.ready):
            m.d.sync += [
                self.some.eq(self.i.valid),
                self.place.eq(self.i.payload.place),
                self.final.eq(self.i.payload.final),
                owner.eq(self.i.payload.owner),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += self.place.eq(Cat(Const(0, bits), high + 1))
        return m
