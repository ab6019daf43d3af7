"""What a half of a port remembers of what went wrong: the first error response, or a slave that does not answer."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.shape import Shape
from relay_eps_hw.faults import Faults, fault


class Watch(wiring.Component):
    """Latches the first fault of a half of a port, with the burst that was the oldest one under way.

    Ports:
        head (in, `Shape.fault`): that burst; its ``found`` and ``dead`` are not used.
        error (in, 1): its response is an error.
        idle (in, 1): nothing is under way.
        moves (in, 1): there was a handshake on one of the channels.
        clear (in, 1): forget the fault, unless the slave is still dead.
        fault (out, `Shape.fault`).
        dead (out, 1): the slave has not answered for ``timeout`` clocks, and there are still bursts under way.

    Args:
        timeout: clocks, a power of two.
    """

    def __init__(self, streams: int, shape: Shape, timeout: int, *, faults: Faults | None = None) -> None:
        self.faults = faults
        #: Clocks since something moved.
        self.waited = Signal(range(timeout))
        layout = shape.fault(streams)
        super().__init__(
            {
                "head": In(layout),
                "error": In(1),
                "idle": In(1),
                "moves": In(1),
                "clear": In(1),
                "fault": Out(layout),
                "dead": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        late = Signal()
        m.d.comb += late.eq(self.waited.all() & ~self.dead)
        with m.If(self.idle | fault(self.faults, "watch.time-goes-on", self.moves, self.moves & self.idle)):
            m.d.sync += self.waited.eq(0)
        with m.Elif(~self.waited.all()):
            m.d.sync += self.waited.eq(self.waited + 1)
        with m.If(late & ~self.idle):
            m.d.sync += self.dead.eq(1)
        with m.Elif(self.idle):
            m.d.sync += self.dead.eq(0)
        with m.If(self.clear & ~self.dead):
            m.d.sync += self.fault.eq(0)
        with m.Elif((self.error | late) & ~fault(self.faults, "watch.last-fault", self.fault.found, late)):
            m.d.sync += [self.fault.eq(self.head), self.fault.found.eq(1), self.fault.dead.eq(~self.error)]
        return m
