"""Widening: 16-bit floats to fp32, exactly."""

from __future__ import annotations

from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.formats import FP16, FP32
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.floats.wire import WireFormat

#: Where the fraction of an fp16 lies in an fp32, and what its exponent lacks there.
_FRACTION_AT = FP32.fraction - FP16.fraction
_BIAS = FP32.bias - FP16.bias
#: The distance that stands for a zero: one more than the smallest subnormal is moved.
_ZERO = FP16.precision


class Widen(FloatUnit):
    """``o`` is ``a``, of one of the `WireFormat`, as fp32. No value changes; a NaN stays a NaN, with its payload.

    Ports:
        a (in, 32): the operand, a 16-bit one in the low half. What lies above it has no influence.
        format (in, 2): its `WireFormat`.
        o (out, 32): the result.

    Everything passes one shifter. Only fp16's subnormals, which fp32 holds as normal numbers, are moved in it.

    Steps:
        1. put sign, exponent and fraction where fp32 has them; look for the top bit of the fraction, four bits a group
        2. how far a subnormal is to be moved, and its exponent; nothing for all others
        3. move
    """

    OPERANDS: ClassVar[tuple[str, ...]] = ("a", "format")

    def __init__(self, *, depth: int | None = None, faults: Faults | None = None) -> None:
        super().__init__((32, 2), 32, weights=(3, 3, 3), depth=depth, faults=faults)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        is_fp32 = self.format == WireFormat.FP32
        is_fp16 = self.format == WireFormat.FP16

        def choose(fp32: Value, bf16: Value, fp16: Value) -> Value:
            return Mux(is_fp32, fp32, Mux(is_fp16, fp16, bf16))

        fraction, exponent = self.a[: FP16.fraction], self.a[FP16.fraction : FP16.width - 1]
        # The significand's bits in groups under the hidden one, which is the first of its group and 0 if it matters.
        groups = (fraction[7:], fraction[3:7], fraction[:3])
        s = p.cut(
            sign=Mux(is_fp32, self.a[31], self.a[15]),
            exponent=choose(self.a[23:31], self.a[7:15], self._exponent(exponent)),
            fraction=choose(self.a[_FRACTION_AT:23], Cat(Const(0, 3), self.a[:7]), fraction),
            low=Mux(is_fp32, self.a[:_FRACTION_AT], 0),
            subnormal=is_fp16 & ~exponent.any(),
            high_any=groups[0].any(),
            high_place=_place(Cat(groups[0], 0)),
            middle_any=groups[1].any(),
            middle_place=_place(groups[1]),
            low_place=_place(Cat(1, groups[2])),
        )
        place = Mux(s.high_any, s.high_place, Mux(s.middle_any, s.middle_place, s.low_place))
        distance = Cat(place, ~s.high_any & s.middle_any, ~s.high_any & ~s.middle_any)
        moved = _BIAS + 1 - distance
        moved = fault(self.faults, "widen.subnormal-exponent-one-less", moved, moved - 1)
        is_zero = fault(self.faults, "widen.zero-is-subnormal", distance == _ZERO, Const(0))
        s = p.cut(
            sign=s.sign,
            exponent=Mux(s.subnormal, Mux(is_zero, 0, moved[:8]), s.exponent),
            fraction=s.fraction,
            low=s.low,
            distance=Mux(s.subnormal, distance, 0),
        )
        by_eight = fault(self.faults, "widen.smallest-subnormals-not-moved", s.distance[3], Const(0))
        distance = Cat(s.distance[:3], by_eight)
        fraction = (s.fraction << distance)[: FP16.fraction]
        s = p.cut(o=Cat(s.low, fraction, s.exponent, s.sign))
        m.d.comb += self.o.eq(s.o)
        p.finish()
        return m

    def _exponent(self, exponent: Value) -> Value:
        """fp32's stored exponent of an fp16 whose stored ``exponent`` is not 0. Adding the bias takes no carry."""
        special = fault(self.faults, "widen.infinity-is-finite", exponent.all(), Const(0))
        below_one = ~exponent[-1] | special
        return Cat(exponent[:-1], below_one.replicate(3), exponent[-1])


def _place(group: Value) -> Value:
    """How many zeros stand above the top one of four bits; 3 where it is the lowest or there is none."""
    return Mux(group[3], 0, Mux(group[2], 1, Mux(group[1], 2, 3)))
