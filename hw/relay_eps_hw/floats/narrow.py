"""Narrowing: fp32 to a 16-bit float, to nearest even."""

from __future__ import annotations

from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.formats import FP16, FP32
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.floats.wire import WireFormat

#: fp32's stored exponents: of the smallest normal fp16, of the smallest value that does not round to zero in fp16
#: whatever its fraction, and of the smallest power of two that is too large for it.
_NORMAL = FP32.bias - FP16.bias + 1
_SHIFTED = _NORMAL - FP16.precision
_TOO_LARGE = _NORMAL - 1 + FP16.exponent_max


class Narrow(FloatUnit):
    """``o`` is the fp32 ``a`` in a `WireFormat`, to nearest even; 16-bit results lie in the low half under zeros.

    Ports:
        a (in, 32): the operand.
        format (in, 2): the `WireFormat` of the result.
        o (out, 32): the result. What is too large is infinite, subnormals are kept. A NaN is some quiet NaN in 16 bits,
            and passes unchanged as fp32.

    Everything passes one shifter and one rounding. Only what is subnormal in fp16 is moved; what is too large for it is
    moved until nothing is left, and so is what is too small.

    Steps:
        1. find out what ``a`` is in fp16, and whether it is a NaN
        2. put sign, exponent and fraction where the result has them, a guard bit under it; the distance to move
        3. move by 8 or 4
        4. move by up to 3; decide the rounding
        5. add the rounding, through fraction and exponent
    """

    OPERANDS: ClassVar[tuple[str, ...]] = ("a", "format")

    def __init__(self, *, depth: int | None = None, faults: Faults | None = None) -> None:
        super().__init__((32, 2), 32, weights=(3, 3, 2, 3, 4), depth=depth, faults=faults)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        value = Fields(FP32, self.a)
        is_fp32 = self.format == WireFormat.FP32
        is_fp16 = self.format == WireFormat.FP16
        is_nan = fault(self.faults, "narrow.nan-is-infinite", value.is_nan, Const(0))
        too_large = value.exponent >= _TOO_LARGE
        wrong = value.exponent >= _TOO_LARGE - 1
        too_large = fault(self.faults, "narrow.largest-exponent-is-infinite", too_large, wrong)
        is_normal = value.exponent >= _NORMAL
        in_reach = value.exponent >= _SHIFTED
        s = p.cut(
            a=self.a,
            is_fp32=is_fp32,
            is_fp16=is_fp16,
            is_nan=is_nan & ~is_fp32,
            too_large=too_large,
            is_normal=is_normal,
            stay=~is_fp16 | is_normal & ~too_large,
            vanish=is_fp16 & (too_large | ~in_reach),
            distance=(_NORMAL - value.exponent)[:4],
            lost=self.a[:12].any() | ~is_fp16 & self.a[12:15].any(),
        )

        def choose(fp32: Value, bf16: Value, fp16: Value) -> Value:
            return Mux(s.is_fp32, fp32, Mux(s.is_fp16, fp16, bf16))

        fp16_exponent = Mux(s.too_large, FP16.exponent_max, Mux(s.is_normal, Cat(s.a[23:27], s.a[30]), 0))
        fraction = choose(s.a[:10], s.a[16:26], s.a[13:23])
        guard = choose(Const(0, 1), s.a[15], s.a[12])
        s = p.cut(
            high=Mux(s.is_fp32, s.a[16:], 0),
            sign=Mux(s.is_fp32, s.a[15], s.a[31]),
            exponent=choose(s.a[10:15], s.a[26:31], fp16_exponent),
            # The hidden bit of fp16 comes in from above; where nothing is moved it stays outside.
            value=Cat(guard & ~s.is_nan, fraction[:6], fraction[6:] | s.is_nan.replicate(4), 1),
            distance=Mux(s.stay | s.is_nan, 0, s.distance | s.vanish.replicate(4)),
            lost=s.lost,
        )
        moved = Mux(s.distance[3], Mux(s.distance[2], 0, s.value[8:]), Mux(s.distance[2], s.value[4:], s.value))
        fallen = Mux(s.distance[3], s.value[:8].any(), s.distance[2] & s.value[:4].any())
        s = p.cut(
            high=s.high,
            sign=s.sign,
            exponent=s.exponent,
            value=moved,
            distance=s.distance[:2],
            lost=fault(self.faults, "narrow.sticky-dropped", s.lost | fallen, s.lost),
        )
        moved = (s.value >> s.distance)[:11]
        one, two = s.value[0], s.value[1]
        fallen = Mux(s.distance[1], one | two | s.distance[0] & s.value[2], s.distance[0] & one)
        to_odd = fault(self.faults, "narrow.tie-away", moved[1] | s.lost | fallen, Const(1))
        s = p.cut(high=s.high, sign=s.sign, value=Cat(moved[1:], s.exponent), up=moved[0] & to_odd)
        s = p.cut(o=Cat((s.value + s.up)[:15], s.sign, s.high))
        m.d.comb += self.o.eq(s.o)
        p.finish()
        return m
