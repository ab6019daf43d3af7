"""Whose turn it is: round robin among several that ask."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class RoundRobin(wiring.Component):
    """The first that asks after the last one that was served; within the clock.

    Ports:
        asks (in, parties): who asks.
        served (in, 1): the one that is chosen is served in this clock.
        chosen (out, parties): one bit, or none where none asks.
        number (out): its place.

    Attributes:
        after (parties): those behind the last one served; they come first.
    """

    def __init__(self, parties: int) -> None:
        if parties < 1:
            raise ValueError(f"{parties} parties cannot take turns: use 1 or more")
        self.parties = parties
        self.after = Signal(parties)
        super().__init__({"asks": In(parties), "served": In(1), "chosen": Out(parties), "number": Out(range(parties))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        first = self.asks & self.after
        pool = Signal(self.parties)
        with m.If(first.any()):
            m.d.comb += pool.eq(first)
        with m.Else():
            m.d.comb += pool.eq(self.asks)
        m.d.comb += self.chosen.eq(Cat(bit & ~pool[:place].any() for place, bit in enumerate(pool)))
        for place in range(self.parties):
            with m.If(self.chosen[place]):
                m.d.comb += self.number.eq(place)
                with m.If(self.served):
                    m.d.sync += self.after.eq(((1 << self.parties) - 1) & ~((2 << place) - 1))
        return m
