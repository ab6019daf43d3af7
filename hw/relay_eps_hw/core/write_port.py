"""The write channels of an AXI4 port, shared by several streams."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.addresses import Addresses, connect
from relay_eps_hw.core.bursts import burst_layout, check_bursts, fault_layout
from relay_eps_hw.core.write_data import WriteData, beat_layout, burst_data_layout
from relay_eps_hw.faults import Faults, fault


class WritePort(wiring.Component):
    """Bursts of several streams, one after another, each with all its data; and their responses.

    A stream asks only when all the data of a burst is there, so the bus never waits for it. After an error response, or
    while ``stop`` is high, no more addresses are sent; bursts that were accepted are completed, after an error without
    strobes.

    Ports:
        requests (in, streams of `burst_layout`), beats (in, streams of `beat_layout`): by stream.
        acknowledged (out, streams): a burst of this stream has its response, which was no error.
        acknowledged_beats (out): how many beats that burst had.
        bus (out, the write channels of AXI4).
        stop (in, 1).
        idle (out, 1): every burst has its response, and no address waits.
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
                "beats": In(stream.Signature(beat_layout(beat_bytes))).array(streams),
                "acknowledged": Out(streams),
                "acknowledged_beats": Out(limit.bit_length()),
                "bus": Out(axi.write(8 * beat_bytes)),
                "stop": In(1),
                "idle": Out(1),
                "fault": Out(fault_layout(streams, beat_bytes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.addresses = asked = Addresses(self.streams, self.beat_bytes, self.limit)
        to_send = burst_data_layout(self.streams, self.limit)
        m.submodules.to_send = unsent = SyncFIFOBuffered(width=to_send.size, depth=self.outstanding)
        under_way = data.StructLayout({**to_send.members, "place": len(self.fault.place)})
        m.submodules.under_way = queue = SyncFIFOBuffered(width=under_way.size, depth=self.outstanding)

        stopped = self.stop | fault(self.faults, "write.goes-on-after-an-error", self.fault.found, Const(0))
        connect(m, asked, self, "aw", queue.w_rdy & unsent.w_rdy & ~stopped)
        m.d.comb += [queue.w_en.eq(asked.enters), unsent.w_en.eq(asked.enters)]
        for entry in (data.View(to_send, unsent.w_data), data.View(under_way, queue.w_data)):
            m.d.comb += [entry.number.eq(asked.number), entry.beats.eq(asked.burst.beats)]
        m.d.comb += data.View(under_way, queue.w_data).place.eq(asked.burst.place)
        self._send(m, unsent)
        self._responses(m, queue, data.View(under_way, queue.r_data))
        return m

    def _send(self, m: Module, unsent: SyncFIFOBuffered) -> None:
        """The data channel."""
        bus = self.bus
        m.submodules.sender = sender = WriteData(self.streams, self.beat_bytes, self.limit, faults=self.faults)
        m.d.comb += [
            sender.bursts.valid.eq(unsent.r_rdy),
            sender.bursts.payload.eq(unsent.r_data),
            unsent.r_en.eq(sender.bursts.ready),
            sender.void.eq(fault(self.faults, "write.writes-after-an-error", self.fault.found, Const(0))),
            bus.wvalid.eq(sender.o.valid),
            bus.wdata.eq(sender.o.payload.data),
            bus.wstrb.eq(sender.o.payload.strobes),
            bus.wlast.eq(sender.o.payload.last),
            sender.o.ready.eq(bus.wready),
        ]
        for number, beats in enumerate(self.beats):
            wiring.connect(m, wiring.flipped(beats), sender.beats[number])

    def _responses(self, m: Module, queue: SyncFIFOBuffered, head: data.View) -> None:
        """The response channel."""
        bus = self.bus
        answered, good = Signal(), Signal()
        m.d.comb += [
            bus.bready.eq(queue.r_rdy),
            answered.eq(bus.bvalid & bus.bready),
            queue.r_en.eq(answered),
            good.eq(answered & fault(self.faults, "write.error-acknowledged", ~bus.bresp[1], Const(1))),
            self.acknowledged_beats.eq(head.beats),
            *(self.acknowledged[number].eq(good & (head.number == number)) for number in range(self.streams)),
            self.idle.eq(~bus.awvalid & (queue.level == 0)),
        ]
        with m.If(answered & bus.bresp[1] & ~self.fault.found):
            m.d.sync += [self.fault.found.eq(1), self.fault.number.eq(head.number), self.fault.place.eq(head.place)]
