"""Delay lines: long ones lie in RAM, where a bit costs a sixteenth of a flip-flop or less."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

#: Delays up to this many clocks are plain registers; AMD's tools make shift-register LUTs of them.
LONGEST_IN_REGISTERS = 3
#: RAMs of up to this many rows are made of LUTs, whose output is fast; larger ones get a register after them.
ROWS_IN_LUTS = 16


class DelayLine(wiring.Component):
    """``o`` is what ``i`` was ``clocks`` clocks ago. It always runs; there is no stall and no reset of what is in it.

    A line of more than `LONGEST_IN_REGISTERS` clocks is a circular buffer: a counter addresses a RAM, and what is read
    is the oldest row, one clock before it is written again. A register after a block RAM keeps its slow output out of
    the paths that follow.

    Ports:
        i (in, width), o (out, width).

    Args:
        width: bits, 1 or more; ValueError below.
        clocks: the delay, 0 or more; ValueError below.
    """

    def __init__(self, width: int, clocks: int) -> None:
        if type(clocks) is not int or clocks < 0:
            raise ValueError(f"a delay of {clocks!r} clocks is not possible: use 0 or more")
        if type(width) is not int or width < 1:
            raise ValueError(f"a delay line of {width!r} bits is not possible: use 1 or more")
        self.width = width
        self.clocks = clocks
        super().__init__({"i": In(width), "o": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        if self.clocks <= LONGEST_IN_REGISTERS:
            m.d.comb += self.o.eq(self._in_registers(m))
        else:
            self._in_ram(m)
        return m

    def _in_registers(self, m: Module) -> Value:
        value: Value = self.i
        for clock in range(self.clocks):
            register = Signal(self.width, name=f"delayed_{clock + 1}", reset_less=True)
            m.d.sync += register.eq(value)
            value = register
        return value

    def _in_ram(self, m: Module) -> None:
        # As many clocks pass in the RAM, its own read register included, as it has rows.
        in_luts = self.clocks <= ROWS_IN_LUTS
        rows = self.clocks if in_luts else self.clocks - 1
        place = Signal(range(rows))
        following = Signal(range(rows))
        m.d.comb += following.eq(place + 1)
        with m.If(place == rows - 1):
            m.d.comb += following.eq(0)
        m.d.sync += place.eq(following)

        m.submodules.ram = ram = Memory(shape=self.width, depth=rows, init=[])
        write = ram.write_port()
        read = ram.read_port()
        m.d.comb += [
            write.addr.eq(place),
            write.data.eq(self.i),
            write.en.eq(1),
            read.addr.eq(following),
        ]
        if in_luts:
            m.d.comb += self.o.eq(read.data)
        else:
            late = Signal(self.width, reset_less=True)
            m.d.sync += late.eq(read.data)
            m.d.comb += self.o.eq(late)
