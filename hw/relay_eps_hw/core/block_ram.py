"""Block RAM behind an AXI4 port, with a second port for the host: a small board's whole memory."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.shape import Shape


class BlockRam(wiring.Component):
    """``rows`` beats of memory from address 0; an access beyond is answered with an error and changes nothing.

    One burst of each direction at a time, a beat a clock; a read's first beat comes two clocks after its address.

    Ports:
        reads, writes (in, the halves of AXI4).
        row (in): which beat the host looks at; write (in, 1), data (in), out (out): what it writes, in this clock, and
            what is there, a clock later. The host's writes go before the port's: it waits.

    Args:
        rows: how many beats, a power of two.
    """

    def __init__(self, shape: Shape, rows: int) -> None:
        if rows < 2 or rows & (rows - 1):
            raise ValueError(f"{rows!r} rows are not supported: use a power of two")
        self._shape = shape
        self._rows = rows
        bits = shape.beat_bits
        super().__init__(
            {
                "reads": In(axi.read(bits)),
                "writes": In(axi.write(bits)),
                "row": In(range(rows)),
                "write": In(1),
                "data": In(bits),
                "out": Out(bits),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=self._shape.beat_bits, depth=self._rows, init=[])
        port, host = memory.read_port(), memory.read_port()
        store = memory.write_port(granularity=8)
        m.d.comb += [host.addr.eq(self.row), self.out.eq(host.data)]
        self._read(m, port)
        self._write(m, store)
        return m

    def _outside(self, address: Signal) -> Signal:
        return address[self._shape.below + len(self.row) :].any()

    def _read(self, m: Module, port: wiring.PureInterface) -> None:
        bus = self.reads
        place, left, wrong = Signal(len(self.row)), Signal(9), Signal()
        #: A beat has been read and is in the memory's output.
        held, held_last, moves = Signal(), Signal(), Signal()
        m.d.comb += [
            bus.arready.eq(left == 0),
            moves.eq((left != 0) & (~held | bus.rready)),
            port.en.eq(moves),
            port.addr.eq(place),
            bus.rvalid.eq(held),
            bus.rdata.eq(port.data),
            bus.rlast.eq(held_last),
        ]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [
                place.eq(bus.araddr[self._shape.below :]),
                left.eq(bus.arlen + 1),
                wrong.eq(self._outside(bus.araddr)),
            ]
        with m.If(moves):
            m.d.sync += [place.eq(place + 1), left.eq(left - 1), held_last.eq(left == 1)]
            m.d.sync += bus.rresp.eq(wrong << 1)
        with m.If(~held | bus.rready):
            m.d.sync += held.eq(moves)

    def _write(self, m: Module, store: wiring.PureInterface) -> None:
        bus = self.writes
        place, busy, wrong = Signal(len(self.row)), Signal(), Signal()
        takes = Signal()
        m.d.comb += [
            bus.awready.eq(~busy & ~bus.bvalid),
            bus.wready.eq(busy & ~self.write),
            takes.eq(bus.wvalid & bus.wready),
        ]
        with m.If(self.write):
            m.d.comb += [store.addr.eq(self.row), store.data.eq(self.data), store.en.eq(~0)]
        with m.Else():
            strobes = bus.wstrb & (takes & ~wrong).replicate(len(bus.wstrb))
            m.d.comb += [store.addr.eq(place), store.data.eq(bus.wdata), store.en.eq(Cat(strobes))]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [
                busy.eq(1),
                place.eq(bus.awaddr[self._shape.below :]),
                wrong.eq(self._outside(bus.awaddr)),
            ]
        with m.If(takes):
            m.d.sync += place.eq(place + 1)
            with m.If(bus.wlast):
                m.d.sync += [busy.eq(0), bus.bvalid.eq(1), bus.bresp.eq(wrong << 1)]
        with m.Elif(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
