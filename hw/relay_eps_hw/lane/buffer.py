"""The buffer behind the lanes: each output of a beat is written when it is ready, and beats are read in order.

A beat's moments come out of a lane long before its weights. Each column of the buffer has its own write counter, so the
early ones wait in the RAM that the buffer needs anyway, and no delay lines are spent on them.
"""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out


class Column(wiring.Component):
    """One column of the buffer: a RAM of ``rows`` rows, written and read in order.

    Ports:
        data (in, width), write (in, 1): ``data`` goes into the next row.
        fetch (in, 1): the next row comes out of the RAM.
        advance (in, 1): the row that has come out goes on to ``o``, in a register of its own: a RAM's output is slow.
        o (out, width).
    """

    def __init__(self, width: int, rows: int) -> None:
        self.rows = rows
        super().__init__({"data": In(width), "write": In(1), "fetch": In(1), "advance": In(1), "o": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.ram = ram = Memory(shape=len(self.data), depth=self.rows, init=[])
        write = ram.write_port()
        read = ram.read_port()
        # Rows are a power of two: the counters wrap by themselves.
        written = Signal(range(self.rows))
        fetched = Signal(range(self.rows))
        with m.If(self.write):
            m.d.sync += written.eq(written + 1)
        with m.If(self.fetch):
            m.d.sync += fetched.eq(fetched + 1)
        m.d.comb += [
            write.addr.eq(written),
            write.data.eq(self.data),
            write.en.eq(self.write),
            read.addr.eq(fetched),
            read.en.eq(self.fetch),
        ]
        with m.If(self.advance):
            m.d.sync += self.o.eq(read.data)
        return m


class Occupancy(wiring.Component):
    """Who may enter, and what may leave: the counters of the buffer.

    A beat takes a row when it enters the lanes and gives it back when it is fetched, so whatever the lanes hold has a
    place to go, and the lanes need no stall.

    Ports:
        accept (in, 1): a beat enters the lanes; only while ``room``.
        complete (in, 1): the oldest beat not yet complete has written its last column.
        room (out, 1): there is a row for another beat.
        ready (in, 1), valid (out, 1): the handshake of the beat at the columns' outputs.
        fetch, advance (out, 1): the columns fetch their next row, and move the last one on.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        super().__init__(
            {"accept": In(1), "complete": In(1), "room": Out(1), "ready": In(1), "valid": Out(1)}
            | {"fetch": Out(1), "advance": Out(1)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Rows taken, and rows complete that were not fetched; a flag beside each keeps the comparison off the path.
        taken = Signal(range(self.rows + 1))
        waiting = Signal(range(self.rows + 1))
        any_waiting = Signal()
        full = Signal()
        # A row has come out of the RAM.
        out = Signal()
        m.d.comb += [
            self.room.eq(~full),
            self.advance.eq(out & (~self.valid | self.ready)),
            self.fetch.eq(any_waiting & (~out | self.advance)),
        ]
        with m.If(self.accept & ~self.fetch):
            m.d.sync += [taken.eq(taken + 1), full.eq(taken == self.rows - 1)]
        with m.Elif(self.fetch & ~self.accept):
            m.d.sync += [taken.eq(taken - 1), full.eq(0)]
        with m.If(self.complete & ~self.fetch):
            m.d.sync += [waiting.eq(waiting + 1), any_waiting.eq(1)]
        with m.Elif(self.fetch & ~self.complete):
            m.d.sync += [waiting.eq(waiting - 1), any_waiting.eq(waiting != 1)]
        with m.If(self.fetch):
            m.d.sync += out.eq(1)
        with m.Elif(self.advance):
            m.d.sync += out.eq(0)
        with m.If(self.advance):
            m.d.sync += self.valid.eq(1)
        with m.Elif(self.ready):
            m.d.sync += self.valid.eq(0)
        return m
