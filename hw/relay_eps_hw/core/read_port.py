"""The read channels of an AXI4 port, shared by several streams."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.addresses import Addresses, connect
from relay_eps_hw.core.bursts import burst_layout, check_bursts, fault_layout
from relay_eps_hw.faults import Faults, fault


class ReadPort(wiring.Component):
    """Bursts of several streams, one after another; each beat goes to the stream that asked for it.

    A stream asks only for what it has room for, so beats have no ready and the bus never waits. After an error
    response, or while ``stop`` is high, no more addresses are sent; what is outstanding is taken.

    Ports:
        requests (in, streams of `burst_layout`): by stream.
        valid (out, streams): whether ``beat`` is this stream's.
        beat (out, data_bits).
        bus (out, the read channels of AXI4).
        stop (in, 1).
        idle (out, 1): nothing is outstanding, and no address waits.
        fault (out, `fault_layout`): the first error response.

    Args:
        streams: how many.
        beat_bytes, limit: as for `Bursts`.
        outstanding: the most bursts under way at once.
    """

    def __init__(
        self, streams: int, beat_bytes: int, limit: int, *, outstanding: int, faults: Faults | None = None
    ) -> None:
        check_bursts(beat_bytes, limit)
        if outstanding < 1:
            raise ValueError(f"{outstanding} outstanding bursts are not possible: use 1 or more")
        self.streams = streams
        self.beat_bytes = beat_bytes
        self.limit = limit
        self.outstanding = outstanding
        self.faults = faults
        super().__init__(
            {
                "requests": In(stream.Signature(burst_layout(beat_bytes, limit))).array(streams),
                "valid": Out(streams),
                "beat": Out(8 * beat_bytes),
                "bus": Out(axi.read(8 * beat_bytes)),
                "stop": In(1),
                "idle": Out(1),
                "fault": Out(fault_layout(streams, beat_bytes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bus = self.bus
        m.submodules.addresses = asked = Addresses(self.streams, self.beat_bytes, self.limit)
        burst = data.StructLayout({"number": len(self.fault.number), "place": len(self.fault.place)})
        m.submodules.under_way = queue = SyncFIFOBuffered(width=burst.size, depth=self.outstanding)
        head = data.View(burst, queue.r_data)

        stopped = self.stop | fault(self.faults, "read.goes-on-after-an-error", self.fault.found, Const(0))
        connect(m, asked, self, "ar", queue.w_rdy & ~stopped)
        entry = data.View(burst, queue.w_data)
        m.d.comb += [queue.w_en.eq(asked.enters), entry.number.eq(asked.number), entry.place.eq(asked.burst.place)]

        taken = Signal()
        owner = fault(self.faults, "read.wrong-owner", head.number, asked.number)
        m.d.comb += [
            bus.rready.eq(queue.r_rdy),
            taken.eq(bus.rvalid & bus.rready),
            queue.r_en.eq(taken & bus.rlast),
            self.beat.eq(bus.rdata),
            *(self.valid[number].eq(taken & (owner == number)) for number in range(self.streams)),
            self.idle.eq(~bus.arvalid & (queue.level == 0)),
        ]
        with m.If(taken & bus.rresp[1] & ~self.fault.found):
            m.d.sync += [self.fault.found.eq(1), self.fault.number.eq(head.number), self.fault.place.eq(head.place)]
        return m
