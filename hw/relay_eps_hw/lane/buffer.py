"""The buffer behind the lanes: each output of a beat is written when it is ready, and beats are read in order.

A beat's moments come out of a lane long before its weights. Each column of the buffer has its own write counter, so the
early ones wait in the RAM that the buffer needs anyway, and no delay lines are spent on them.
"""

from __future__ import annotations

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from relay_eps_hw.faults import Faults, fault


class Column(wiring.Component):
    """One column of the buffer: a RAM of ``rows`` rows, written and read in order.

    Ports:
        data (in, width), write (in, 1): ``data`` goes into the next row.
        fetch (in, 1): the next row comes out of the RAM.
        advance (in, 1): the row that has come out goes on to ``o``, in a register of its own: a RAM's output is slow.
        o (out, width).

    Attributes:
        ram: the rows.
        written, fetched: the row to write next, and to fetch next.
        read: the port of ``ram`` that fetches; its data is the row that has come out.
    """

    def __init__(self, width: int, rows: int) -> None:
        self.rows = rows
        self.ram = Memory(shape=width, depth=rows, init=[])
        self.read = self.ram.read_port()
        # Rows are a power of two: the counters wrap by themselves.
        self.written = Signal(range(rows))
        self.fetched = Signal(range(rows))
        super().__init__({"data": In(width), "write": In(1), "fetch": In(1), "advance": In(1), "o": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.ram = self.ram
        write = self.ram.write_port()
        with m.If(self.write):
            m.d.sync += self.written.eq(self.written + 1)
        with m.If(self.fetch):
            m.d.sync += self.fetched.eq(self.fetched + 1)
        m.d.comb += [
            write.addr.eq(self.written),
            write.data.eq(self.data),
            write.en.eq(self.write),
            self.read.addr.eq(self.fetched),
            self.read.en.eq(self.fetch),
        ]
        with m.If(self.advance):
            m.d.sync += self.o.eq(self.read.data)
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

    Attributes:
        taken: rows taken.
        waiting: of them those that are complete and not fetched.
        full, any_waiting: a flag beside each, which keeps a comparison off the paths.
        out: a row has come out of the RAM.
    """

    def __init__(self, rows: int, faults: Faults | None = None) -> None:
        self.rows = rows
        self.faults = faults
        self.taken = Signal(range(rows + 1))
        self.waiting = Signal(range(rows + 1))
        self.full = Signal()
        self.any_waiting = Signal()
        self.out = Signal()
        super().__init__(
            {"accept": In(1), "complete": In(1), "room": Out(1), "ready": In(1), "valid": Out(1)}
            | {"fetch": Out(1), "advance": Out(1)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        move_on = ~self.out | self.advance
        complete = fault(self.faults, "buffer.fetched-before-complete", self.complete, self.accept)
        last_row = fault(self.faults, "buffer.one-row-too-many", self.taken == self.rows - 1, self.taken == self.rows)
        m.d.comb += [
            self.room.eq(~self.full),
            self.advance.eq(self.out & (~self.valid | self.ready)),
            self.fetch.eq(self.any_waiting & fault(self.faults, "buffer.fetched-over-a-row", move_on, Const(1))),
        ]
        with m.If(self.accept & ~self.fetch):
            m.d.sync += [self.taken.eq(self.taken + 1), self.full.eq(last_row)]
        with m.Elif(self.fetch & ~self.accept):
            m.d.sync += [self.taken.eq(self.taken - 1), self.full.eq(0)]
        with m.If(complete & ~self.fetch):
            m.d.sync += [self.waiting.eq(self.waiting + 1), self.any_waiting.eq(1)]
        with m.Elif(self.fetch & ~complete):
            m.d.sync += [self.waiting.eq(self.waiting - 1), self.any_waiting.eq(self.waiting != 1)]
        with m.If(self.fetch):
            m.d.sync += self.out.eq(1)
        with m.Elif(self.advance):
            m.d.sync += self.out.eq(0)
        with m.If(self.advance):
            m.d.sync += self.valid.eq(1)
        with m.Elif(self.ready):
            m.d.sync += self.valid.eq(0)
        return m
