"""The read channels of an AXI4 port, shared by several streams."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.addresses import Addresses, connect
from relay_eps_hw.core.shape import Shape
from relay_eps_hw.core.watch import Watch
from relay_eps_hw.faults import Faults, fault


class ReadPort(wiring.Component):
    """Bursts of several streams, one after another; each beat goes to the stream that asked for it.

    A stream asks only for what it has room for, so beats have no ready and the bus never waits. After a fault, or
    while ``stop`` is high, no more addresses are sent; what is outstanding is taken. What a slave answers after it was
    given up goes nowhere.

    Ports:
        requests (in, streams of `Shape.burst`): by stream.
        valid (out, streams): whether ``beat`` is this stream's.
        beat (out, data_bits).
        bus (out, the read channels of AXI4).
        stop (in, 1).
        clear (in, 1): forget the fault; the port comes to itself, unless it is dead.
        idle (out, 1): nothing is outstanding, and no address waits.
        dead (out, 1): the slave has not answered, and still owes it.
        fault (out, `Shape.fault`): the first error response, or that the slave has not answered.

    Args:
        streams: how many.
        outstanding: the most bursts under way at once.
        timeout: clocks without an answer, a power of two, after which the slave is given up.
    """

    def __init__(
        self, streams: int, shape: Shape, *, outstanding: int, timeout: int = 1 << 20, faults: Faults | None = None
    ) -> None:
        if outstanding < 1:
            raise ValueError(f"{outstanding} outstanding bursts are not possible: use 1 or more")
        self.streams = streams
        self.shape = shape
        self.outstanding = outstanding
        self.timeout = timeout
        self.faults = faults
        super().__init__(
            {
                "requests": In(stream.Signature(shape.burst)).array(streams),
                "valid": Out(streams),
                "beat": Out(shape.beat_bits),
                "bus": Out(axi.read(shape.beat_bits)),
                "stop": In(1),
                "clear": In(1),
                "idle": Out(1),
                "dead": Out(1),
                "fault": Out(shape.fault(streams)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bus = self.bus
        m.submodules.addresses = asked = Addresses(self.streams, self.shape)
        layout = self.shape.fault(self.streams)
        entry_layout = data.StructLayout({name: layout[name].shape for name in ("number", "owner", "place")})
        m.submodules.under_way = queue = SyncFIFOBuffered(width=entry_layout.size, depth=self.outstanding)
        head = data.View(entry_layout, queue.r_data)
        m.submodules.watch = watch = Watch(self.streams, self.shape, self.timeout, faults=self.faults)

        failed = fault(self.faults, "read.goes-on-after-an-error", self.fault.found, Const(0)) | self.dead
        connect(m, asked, self, "ar", (queue.w_rdy & ~self.stop & ~failed).replicate(self.streams))
        entry = data.View(entry_layout, queue.w_data)
        m.d.comb += [
            queue.w_en.eq(asked.enters),
            entry.number.eq(asked.number),
            entry.owner.eq(asked.burst.owner),
            entry.place.eq(asked.burst.place),
        ]

        taken = Signal()
        owner = fault(self.faults, "read.wrong-owner", head.number, asked.number)
        m.d.comb += [
            bus.rready.eq(queue.r_rdy),
            taken.eq(bus.rvalid & bus.rready),
            queue.r_en.eq(taken & bus.rlast),
            self.beat.eq(bus.rdata),
            *(self.valid[number].eq(taken & (owner == number) & ~self.dead) for number in range(self.streams)),
            self.idle.eq(~bus.arvalid & (queue.level == 0)),
            *(watch.head[name].eq(head[name]) for name in ("number", "owner", "place")),
            watch.error.eq(taken & bus.rresp[1]),
            watch.idle.eq(self.idle),
            watch.moves.eq(taken | bus.arvalid & bus.arready),
            watch.clear.eq(self.clear),
            self.fault.eq(watch.fault),
            self.dead.eq(watch.dead),
        ]
        return m
