"""The square root, one bit a step."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.pipeline import Pipeline
from relay_eps_hw.floats.recurrence import root_digit, root_first
from relay_eps_hw.floats.shift import leading_zeros, shift_left
from relay_eps_hw.floats.unit import FloatUnit, check_format

#: Steps before the second bit of the root; the first is always 1.
BEFORE = 4


class Root(FloatUnit):
    """``o = sqrt(a)``; of -0 it is -0, of what is below zero NaN.

    Infinities, NaNs and zeros are known by the exponent they get in step 4, which no root has.

    A root is never subnormal, and never half way between two floats: an odd number of one bit more than the precision
    has an odd square, and what the root is taken of is even at that place. So the bit below the last decides alone.

    Steps, where n is the format's precision:

    1. see whether the operand is special; find the hidden bit
    2. count leading zeros
    3. move up by 16 and 8; lower the exponent
    4. by 4, 2 and 1; halve the exponent; the first bit of the root (`recurrence.root_first`)
    5. to n + 4. one bit each, the last the guard bit (`recurrence.root_digit`)
    n + 5. add the rounding; clear the fraction of a special result

    Args:
        fmt: the format of a and o; ValueError for one whose roots could be subnormal, with more fraction bits than its
            bias less 1.
    """

    OPERANDS = ("a",)

    def __init__(self, fmt: FloatFormat = FP32, *, depth: int | None = None, faults: Faults | None = None) -> None:
        self.fmt = check_format(fmt)
        if fmt.fraction >= fmt.bias:
            raise ValueError(
                f"roots with {fmt.exponent} exponent and {fmt.fraction} fraction bits can be subnormal: "
                f"use at most {fmt.bias - 1} fraction bits"
            )
        super().__init__((fmt.width,), fmt.width, (1,) * (BEFORE + fmt.precision + 1), depth, faults)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        s = self._normalise(p)
        s = self._digits(p, s)
        m.d.comb += self.o.eq(self._round(p, s))
        p.finish()
        return m

    def _normalise(self, p: Pipeline) -> SimpleNamespace:
        """Steps 1 to 4."""
        fmt = self.fmt
        a = Fields(fmt, self.a)
        below_zero = fault(self.faults, "root.below-zero", a.sign & ~a.is_zero, Const(0))
        s = p.cut(
            a=a.significand,
            exponent=a.effective_exponent,
            sign=a.sign,
            nan=a.is_nan | below_zero,
            inf=a.is_inf,
        )
        s = p.cut(
            a=s.a,
            zeros=leading_zeros(p, s.a),
            exponent=s.exponent,
            sign=s.sign,
            nan=s.nan,
            large=s.nan | s.inf,
            zero=~s.a.any(),
        )
        split = min(3, len(s.zeros))
        # Biased once more, it is twice the root's stored exponent, or one more.
        exponent = s.exponent - s.zeros + fmt.bias
        s = p.cut(
            a=shift_left(p, s.a, s.zeros[split:], 1 << split),
            zeros=s.zeros[:split],
            exponent=exponent[: fmt.exponent + 1],
            sign=s.sign,
            nan=s.nan,
            large=s.large,
            zero=s.zero,
        )
        value = p.share(shift_left(p, s.a, s.zeros))
        odd = fault(self.faults, "root.odd-exponent", s.exponent[0], Const(0))
        # The radicand is from 1 to under 4, two bits before the point: of an odd doubled exponent it is doubled.
        radicand = p.share(Mux(odd, Cat(Const(0, 1), value), Cat(value, Const(0, 1))))
        return p.cut(
            remainder=root_first(radicand[-2:]),
            signs=Const(0, 0),
            radicand=radicand[:-2],
            exponent=Mux(s.large, fmt.exponent_max, Mux(s.zero, 0, s.exponent[1:])),
            sign=s.sign,
            nan=s.nan,
        )

    def _digits(self, p: Pipeline, s: SimpleNamespace) -> SimpleNamespace:
        """The root's other bits; whether its exponent is that of a special result, next to the last of them.

        What is kept of them are the remainders' signs, which they are the inverse of.
        """
        for left in reversed(range(self.fmt.precision)):
            two = None
            if len(s.radicand):
                two = Cat(Const(0, 2 - len(s.radicand[-2:])), s.radicand[-2:])
            signs = Cat(s.remainder[-1], s.signs)
            more = {} if left else {"special": s.exponent.all() | ~s.exponent.any()}
            s = p.cut(
                remainder=root_digit(p, s.remainder, ~signs, two),
                signs=signs,
                radicand=s.radicand[:-2],
                exponent=s.exponent,
                sign=s.sign,
                nan=s.nan,
                **more,
            )
        return s

    def _round(self, p: Pipeline, s: SimpleNamespace) -> Value:
        """The last step."""
        fmt = self.fmt
        guard = fault(self.faults, "root.never-up", ~s.remainder[-1], Const(0))
        rounded = (Cat(~s.signs[:-1], s.exponent) + (guard & ~s.special))[: fmt.width - 1]
        fraction = Mux(s.special, Cat(Const(0, fmt.fraction - 1), s.nan), rounded[: fmt.fraction])
        return p.cut(o=Cat(fraction, rounded[fmt.fraction :], s.sign & ~s.nan)).o
