"""Counters that the host reads: clocks, and the beats of each port."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

#: Enough for ten days at 300 MHz.
COUNTER_BITS = 48


class Counters(wiring.Component):
    """Counts clocks in which a bit is set, since the last reset of the device.

    Ports:
        events (in, a bit each), counts (out, 48 bits each).
    """

    def __init__(self, events: int) -> None:
        self._events = events
        super().__init__({"events": In(events), "counts": Out(COUNTER_BITS).array(events)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # The upper part follows a clock later: a carry does not have to run through it in one.
        low = COUNTER_BITS // 2
        for number in range(self._events):
            count = self.counts[number]
            carry = Signal(name=f"carry_{number}")
            m.d.sync += [
                count[:low].eq(count[:low] + self.events[number]),
                carry.eq(count[:low].all() & self.events[number]),
                count[low:].eq(count[low:] + carry),
            ]
        return m
