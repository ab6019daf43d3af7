"""A float unit between two streams."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.faults import fault
from relay_eps_hw.floats.unit import FloatUnit


class Streamed(wiring.Component):
    """``unit`` behind streams: a result for each set of operands, in their order.

    Operands are taken in every clock in which the result at the end, if there is one, is taken: a result a clock, and
    the first comes `latency` clocks after its operands. While a result waits, every register of the unit holds. That
    ``o.ready`` goes to ``i.ready``, and to all these registers, within the clock; what asks for another kind of stall
    puts a buffer behind the unit.

    Ports:
        i (in, stream of the unit's ``OPERANDS``, a StructLayout).
        o (out, stream of the result).

    Attributes:
        occupied (latency bits): which stages of the unit hold an element, the first in bit 0.

    Args:
        unit: the unit; its ``en`` is driven from here. Faults are built in where it has them.
    """

    def __init__(self, unit: FloatUnit) -> None:
        self.unit = unit
        self.occupied = Signal(unit.latency)
        operands = data.StructLayout({name: len(getattr(unit, name)) for name in unit.OPERANDS})
        super().__init__({"i": In(stream.Signature(operands)), "o": Out(stream.Signature(len(unit.o)))})

    @property
    def latency(self) -> int:
        """Clocks from operands to result, not counting those in which a result waits."""
        return self.unit.latency

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        free = ~self.o.valid | self.o.ready
        moving = Signal()
        m.d.comb += [
            moving.eq(fault(unit.faults, "streamed.result-not-held", free, Const(1))),
            self.i.ready.eq(fault(unit.faults, "streamed.ready-while-held", moving, Const(1))),
            unit.en.eq(moving),
            *(getattr(unit, name).eq(self.i.payload[name]) for name in unit.OPERANDS),
            self.o.payload.eq(unit.o),
            self.o.valid.eq(self.occupied[-1]),
        ]
        entering = fault(unit.faults, "streamed.gaps-are-results", self.i.valid, Const(1))
        with m.If(fault(unit.faults, "streamed.valid-stays-when-taken", moving, moving & ~self.o.valid)):
            m.d.sync += self.occupied.eq(Cat(entering, self.occupied)[: self.latency])
        return m
