"""From the formats of gradients to fp32, exactly."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.formats import FP16, FP32
from relay_eps_hw.floats.shift import leading_zeros, shift_left
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.floats.wire import WireFormat


class Widen(FloatUnit):
    """``o`` is the fp32 value of ``a``, which is in the `WireFormat` ``format``; 16-bit ones in its low half.

    Steps:

    1. count the leading zeros of fp16's fraction; find out what it is; choose between fp32 and bf16
    2. normalise fp16 and set its exponent
    3. choose

    A NaN that passes keeps its payload: the units that follow make the quiet NaN of it.
    """

    OPERANDS = ("a", "format")

    def __init__(self, *, depth: int, faults: Faults | None = None) -> None:
        super().__init__((FP32.width, 2), FP32.width, (1, 1, 1), depth, faults)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        half = Fields(FP16, self.a[: FP16.width])
        s = p.cut(
            other=Mux(self.format == WireFormat.BF16, Cat(Const(0, 16), self.a[:16]), self.a),
            is_half=self.format == WireFormat.FP16,
            zeros=leading_zeros(half.fraction),
            fraction=half.fraction,
            exponent=half.exponent,
            hidden=half.hidden,
            top=half.exponent.all(),
        )
        # A subnormal moves up until its highest bit is out of the fraction.
        moved = s.fraction
        for bit in reversed(range(len(s.zeros))):
            moved = shift_left(moved, s.zeros[bit], 1 << bit)
        normalised = Cat(Const(0, 1), moved[:-1])
        rebias = FP32.bias - FP16.bias
        zero = s.zeros == FP16.fraction
        exponent = Mux(s.hidden, s.exponent + rebias, rebias - s.zeros)[: FP32.exponent]
        exponent = Mux(fault(self.faults, "widen.infinity", s.top, Const(0)), FP32.exponent_max, exponent)
        empty = ~s.hidden & fault(self.faults, "widen.zero", zero, Const(0))
        fraction = Mux(s.hidden, s.fraction, fault(self.faults, "widen.subnormal", normalised, s.fraction))
        s = p.cut(
            other=s.other,
            is_half=s.is_half,
            fraction=fraction,
            exponent=exponent & ~empty.replicate(FP32.exponent),
        )
        # The sign of fp16 lies where the choice for bf16 and fp32 has left it.
        wide = Cat(Const(0, FP32.fraction - FP16.fraction), s.fraction, s.exponent, s.other[15])
        m.d.comb += self.o.eq(p.cut(o=Mux(s.is_half, wide, s.other)).o)
        p.finish()
        return m
