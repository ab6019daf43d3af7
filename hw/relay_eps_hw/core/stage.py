"""A register on a stream's way, and a queue of a few entries."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out


class Stage(wiring.Component):
    """One entry on its way, a clock later; one passes in every clock.

    Ports:
        i, o (streams of ``layout``).
    """

    def __init__(self, layout: Any) -> None:
        super().__init__({"i": In(stream.Signature(layout)), "o": Out(stream.Signature(layout))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += [self.o.valid.eq(self.i.valid), self.o.payload.eq(self.i.payload)]
        return m


class Queue(wiring.Component):
    """Up to ``depth`` entries in their order; an entry can be taken in the clock after it came.

    Ports:
        i, o (streams of ``layout``).
    """

    def __init__(self, layout: Any, depth: int) -> None:
        self._depth = depth
        super().__init__({"i": In(stream.Signature(layout)), "o": Out(stream.Signature(layout))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = len(Value.cast(self.i.payload))
        m.submodules.fifo = fifo = SyncFIFO(width=width, depth=self._depth)
        m.d.comb += [
            fifo.w_data.eq(self.i.payload),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
            self.o.payload.eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.o.ready),
        ]
        return m
