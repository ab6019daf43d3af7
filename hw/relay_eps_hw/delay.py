"""Delay lines: long ones lie in RAM, where a bit costs a sixteenth of a flip-flop or less."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

#: Delays up to this many clocks are plain registers; AMD's tools make shift-register LUTs of them.
LONGEST_IN_REGISTERS = 3


class DelayLine(wiring.Component):
    """``o`` is what ``i`` was ``clocks`` clocks ago. It always runs; there is no stall and no reset of what is in it.

    A line of more than `LONGEST_IN_REGISTERS` clocks is a circular buffer: a counter addresses a RAM that is read and
    written at the same place, and a register after the RAM keeps its slow output out of the paths that follow.

    Ports:
        i (in, width), o (out, width).

    Args:
        width: bits.
        clocks: the delay, 0 or more; ValueError below.
    """

    def __init__(self, width: int, clocks: int) -> None:
        if clocks < 0:
            raise ValueError(f"a delay of {clocks} clocks is not possible: use 0 or more")
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
        # A place is read one clock before it is written again: `rows` clocks pass in the RAM, one in its read
        # register (part of the RAM or beside it), one in the register after it.
        rows = self.clocks - 1
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
        m.d.sync += self.o.eq(read.data)
