"""The square root, one bit a step."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.recurrence import root_digit
from relay_eps_hw.floats.shift import leading_zeros, shift_left
from relay_eps_hw.floats.unit import FloatUnit, check_format

#: Steps before the second bit of the root; the first is always 1.
BEFORE = 4


class Root(FloatUnit):
    """``o = sqrt(a)``; of -0 it is -0, of what is below zero NaN.

    A root is never subnormal, and never half way between two floats: an odd number of one bit more than the precision
    has an odd square, and what the root is taken of is even at that place. So the bit below the last decides alone.

    Steps, where n is the format's precision:

    1. see whether the operand is special; find the hidden bit
    2. count leading zeros
    3. move up by 16 and 8; lower the exponent
    4. by 4, 2 and 1; halve the exponent; the first bit of the root
    5. to n + 4. one bit each, the last the guard bit
    n + 5. add the rounding, or put in a special result

    Args:
        fmt: the format of a and o; ValueError for one whose roots could be subnormal, with more fraction bits than its
            bias less 1.
    """

    OPERANDS = ("a",)

    def __init__(self, fmt: FloatFormat = FP32, *, depth: int, faults: Faults | None = None) -> None:
        self.fmt = check_format(fmt)
        if fmt.fraction >= fmt.bias:
            raise ValueError(
                f"roots with {fmt.exponent} exponent and {fmt.fraction} fraction bits can be subnormal: "
                f"use at most {fmt.bias - 1} fraction bits"
            )
        super().__init__((fmt.width,), fmt.width, (1,) * (BEFORE + fmt.precision + 1), depth, faults)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fmt = self.fmt
        p = self.pipeline(m)
        a = Fields(fmt, self.a)
        below_zero = fault(self.faults, "root.below-zero", a.sign & ~a.is_zero, Const(0))
        s = p.cut(
            a=a.significand,
            exponent=Cat(a.exponent[0] | ~a.hidden, a.exponent[1:]),
            sign=a.sign,
            nan=a.is_nan | below_zero,
            inf=a.is_inf,
        )
        flags = {"sign": s.sign, "nan": s.nan, "inf": s.inf}
        s = p.cut(a=s.a, zeros=leading_zeros(p, s.a), exponent=s.exponent, zero=~s.a.any(), **flags)
        split = min(3, len(s.zeros))
        value = shift_left(p, s.a, s.zeros[split:], 1 << split)
        flags = {"sign": s.sign, "nan": s.nan, "inf": s.inf, "zero": s.zero}
        # Biased once more, it is twice the root's stored exponent, or one more.
        exponent = s.exponent - s.zeros + fmt.bias
        s = p.cut(a=value, zeros=s.zeros[:split], exponent=exponent[: fmt.exponent + 1], **flags)
        value = shift_left(p, s.a, s.zeros)
        flags = {name: getattr(s, name) for name in flags}
        odd = fault(self.faults, "root.odd-exponent", s.exponent[0], Const(0))
        # The radicand is from 1 to under 4, two bits before the point: of an odd doubled exponent it is doubled.
        radicand = Mux(odd, Cat(Const(0, 1), value), Cat(value, Const(0, 1)))
        # The first bit is 1; what remains of the first two bits, less it, is 0 to 2.
        s = p.cut(
            remainder=Cat((radicand[-2:] - 1)[:2], Const(0, 1)),
            root=Const(1, 1),
            radicand=radicand[:-2],
            exponent=s.exponent[1:],
            **flags,
        )
        for _ in range(fmt.precision):
            two = Cat(Const(0, max(2 - len(s.radicand), 0)), s.radicand[-2:]) if len(s.radicand) else Const(0, 2)
            remainder, digit = root_digit(p, s.remainder, s.root, two)
            flags = {name: getattr(s, name) for name in flags}
            s = p.cut(
                remainder=remainder,
                root=Cat(digit, s.root),
                radicand=s.radicand[:-2],
                exponent=s.exponent,
                **flags,
            )
        guard = fault(self.faults, "root.never-up", s.root[0], Const(0))
        rounded = Cat(s.root[1:-1], s.exponent) + guard
        special = Mux(s.nan, fmt.nan, Mux(s.inf, fmt.infinity, 0))
        bits = Mux(s.nan | s.inf | s.zero, special, rounded)[: fmt.width - 1]
        m.d.comb += self.o.eq(p.cut(o=Cat(bits, s.sign & ~s.nan)).o)
        p.finish()
        return m
