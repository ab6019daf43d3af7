"""The write channels of an AXI4 port, shared by several streams."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.addresses import Addresses, connect
from relay_eps_hw.core.shape import OWNER_BITS, Shape
from relay_eps_hw.core.watch import Watch
from relay_eps_hw.core.write_data import WriteData, beat_layout, burst_data_layout
from relay_eps_hw.faults import Faults, fault


class WritePort(wiring.Component):
    """Bursts of several streams, one after another, each with all its data; and their responses.

    A stream asks only when all the data of a burst is there, so the bus never waits for it. After a fault, or while
    ``stop`` is high, no more addresses are sent; bursts that were accepted are completed, after a fault without
    strobes. A stream that lasts is not stopped, and is written also after an error, until the port is dead.

    Ports:
        requests (in, streams of `Shape.burst`), beats (in, streams of `beat_layout`): by stream.
        issued (out, streams): a burst of this stream, of descriptor ``issued_owner``, begins.
        acknowledged (out, streams): a burst of this stream has its response, which was no error, with
            ``acknowledged_beats``, of descriptor ``acknowledged_owner``, and whether it was a section's last one.
        bus (out, the write channels of AXI4).
        stop (in, 1).
        clear (in, 1): forget the fault; the port comes to itself, unless it is dead.
        idle (out, 1): every burst has its response, and no address waits.
        dead (out, 1): the slave has not answered, and still owes it.
        fault (out, `Shape.fault`): the first error response, or that the slave has not answered.
        lost (out, 1): a burst of the stream that lasts had an error response, be it the first or not.

    Args:
        streams: how many.
        outstanding: the most bursts under way at once.
        timeout: clocks without an answer, a power of two, after which the slave is given up.
        lasting: the stream that lasts, if there is one.
    """

    def __init__(
        self,
        streams: int,
        shape: Shape,
        *,
        outstanding: int,
        timeout: int = 1 << 20,
        lasting: int | None = None,
        faults: Faults | None = None,
    ) -> None:
        if outstanding < 1:
            raise ValueError(f"{outstanding} outstanding bursts are not possible: use 1 or more")
        self.streams = streams
        self.shape = shape
        self.outstanding = outstanding
        self.timeout = timeout
        self.faults = faults
        self._lasting = Const(0 if lasting is None else 1 << lasting, streams)
        super().__init__(
            {
                "requests": In(stream.Signature(shape.burst)).array(streams),
                "beats": In(stream.Signature(beat_layout(shape.beat_bytes))).array(streams),
                "issued": Out(streams),
                "issued_owner": Out(OWNER_BITS),
                "acknowledged": Out(streams),
                "acknowledged_beats": Out(shape.limit.bit_length()),
                "acknowledged_owner": Out(OWNER_BITS),
                "acknowledged_last": Out(1),
                "bus": Out(axi.write(shape.beat_bits)),
                "stop": In(1),
                "clear": In(1),
                "idle": Out(1),
                "dead": Out(1),
                "fault": Out(shape.fault(streams)),
                "lost": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.addresses = asked = Addresses(self.streams, self.shape)
        to_send = burst_data_layout(self.streams, self.shape.limit)
        m.submodules.to_send = unsent = SyncFIFOBuffered(width=to_send.size, depth=self.outstanding)
        layout = self.shape.fault(self.streams)
        under_way = data.StructLayout(
            {**to_send.members, "last": 1, "owner": OWNER_BITS, "place": layout["place"].shape}
        )
        m.submodules.under_way = queue = SyncFIFOBuffered(width=under_way.size, depth=self.outstanding)

        room = queue.w_rdy & unsent.w_rdy & ~self.dead
        found = fault(self.faults, "write.goes-on-after-an-error", self.fault.found, Const(0))
        allowed = ~(self.stop | found).replicate(self.streams) | self._lasting
        connect(m, asked, self, "aw", room.replicate(self.streams) & allowed)
        sent, entry = data.View(to_send, unsent.w_data), data.View(under_way, queue.w_data)
        m.d.comb += [
            queue.w_en.eq(asked.enters),
            unsent.w_en.eq(asked.enters),
            sent.number.eq(asked.number),
            sent.beats.eq(asked.burst.beats),
            entry.number.eq(asked.number),
            *(entry[name].eq(asked.burst[name]) for name in ("beats", "last", "owner", "place")),
            *(self.issued[number].eq(asked.enters & (asked.number == number)) for number in range(self.streams)),
            self.issued_owner.eq(asked.burst.owner),
        ]
        # Beats of these streams are no longer written.
        void = Signal(self.streams)
        written = fault(self.faults, "write.writes-after-an-error", self.fault.found, Const(0))
        m.d.comb += void.eq(written.replicate(self.streams) & ~self._lasting | self.dead.replicate(self.streams))
        self._send(m, unsent, void)
        self._responses(m, queue, data.View(under_way, queue.r_data), void)
        return m

    def _send(self, m: Module, unsent: SyncFIFOBuffered, void: Signal) -> None:
        """The data channel."""
        bus = self.bus
        m.submodules.sender = sender = WriteData(
            self.streams, self.shape.beat_bytes, self.shape.limit, faults=self.faults
        )
        m.d.comb += [
            sender.bursts.valid.eq(unsent.r_rdy),
            sender.bursts.payload.eq(unsent.r_data),
            unsent.r_en.eq(sender.bursts.ready),
            sender.void.eq(void),
            bus.wvalid.eq(sender.o.valid),
            bus.wdata.eq(sender.o.payload.data),
            bus.wstrb.eq(sender.o.payload.strobes),
            bus.wlast.eq(sender.o.payload.last),
            sender.o.ready.eq(bus.wready),
        ]
        for number, beats in enumerate(self.beats):
            wiring.connect(m, wiring.flipped(beats), sender.beats[number])

    def _responses(self, m: Module, queue: SyncFIFOBuffered, head: data.View, void: Signal) -> None:
        """The response channel."""
        bus = self.bus
        m.submodules.watch = watch = Watch(self.streams, self.shape, self.timeout, faults=self.faults)
        answered, good = Signal(), Signal()
        # Of a burst that may have gone without strobes, a good response says nothing.
        counts = ~void.bit_select(head.number, 1)
        m.d.comb += [
            bus.bready.eq(queue.r_rdy),
            answered.eq(bus.bvalid & bus.bready),
            queue.r_en.eq(answered),
            good.eq(answered & counts & fault(self.faults, "write.error-acknowledged", ~bus.bresp[1], Const(1))),
            self.acknowledged_beats.eq(head.beats),
            self.acknowledged_owner.eq(head.owner),
            self.acknowledged_last.eq(head.last),
            self.acknowledged.eq(Cat(good & (head.number == number) for number in range(self.streams))),
            self.idle.eq(~bus.awvalid & (queue.level == 0)),
            *(watch.head[name].eq(head[name]) for name in ("number", "owner", "place")),
            watch.error.eq(answered & bus.bresp[1]),
            watch.idle.eq(self.idle),
            watch.moves.eq(answered | bus.awvalid & bus.awready | bus.wvalid & bus.wready),
            watch.clear.eq(self.clear),
            self.fault.eq(watch.fault),
            self.dead.eq(watch.dead),
        ]
        with m.If(self.clear):
            m.d.sync += self.lost.eq(0)
        with m.Elif(answered & bus.bresp[1] & self._lasting.bit_select(head.number, 1)):
            m.d.sync += self.lost.eq(1)
