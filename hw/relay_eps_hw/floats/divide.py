"""Division, one quotient bit a step."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats import finish
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.finish import Raw
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.pipeline import Pipeline, carried
from relay_eps_hw.floats.recurrence import divide_digit, divide_first, divide_put_right
from relay_eps_hw.floats.shift import leading_zeros, shift_left
from relay_eps_hw.floats.unit import FloatUnit, check_format

#: Steps before the first quotient bit, and after the last one before `finish`.
BEFORE = 4
AFTER = 2


class Divide(FloatUnit):
    """``o = a / b``.

    Infinities and zeros are results of an exponent too large or too small from step 4 on: one flag less each to carry
    along the digits.

    Steps, where n is the format's precision:

    1. see which operands are special; subtract the exponents
    2. count the leading zeros of both significands
    3. move both up by 16 and 8
    4. by 4, 2 and 1; the exponent of the quotient, or one out of range
    5. the bit before the point (`recurrence.divide_first`)
    6. to n + 6. one bit each, the last the guard bit (`recurrence.divide_digit`)
    n + 7. put the remainder right; how far a subnormal quotient has to go down
    n + 8. is there a remainder
    n + 9. to n + 12. `finish.finish`

    Args:
        fmt: the format of a, b and o.
        positive_divisor: b has its sign set only if it is a NaN.
    """

    OPERANDS = ("a", "b")

    def __init__(
        self,
        fmt: FloatFormat = FP32,
        *,
        depth: int | None = None,
        positive_divisor: bool = False,
        faults: Faults | None = None,
    ) -> None:
        self.fmt = check_format(fmt)
        self.positive_divisor = positive_divisor
        #: Quotient bits: one before the point, one more in case that one is 0, the fraction, and the guard bit.
        self.digits = fmt.precision + 2
        #: Bits of the distance that a subnormal quotient goes down.
        self._bits = (fmt.fraction + 3).bit_length()
        steps = BEFORE + self.digits + AFTER + finish.steps(self._bits)
        #: Bits of exponents in two's complement, with room for that of the largest by the smallest.
        self._exponent_bits = (fmt.exponent_max + fmt.fraction + fmt.bias).bit_length() + 1
        super().__init__((fmt.width, fmt.width), fmt.width, (1,) * steps, depth, faults)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        s = self._normalise(p)
        s = self._digits(p, s)
        raw = self._exact(p, s)
        m.d.comb += self.o.eq(finish.finish(p, self.fmt, raw, self.faults, "divide"))
        p.finish()
        return m

    def _normalise(self, p: Pipeline) -> SimpleNamespace:
        """Steps 1 to 4."""
        fmt = self.fmt
        a, b = Fields(fmt, self.a), Fields(fmt, self.b)
        nan = a.is_nan | b.is_nan
        nan |= fault(self.faults, "divide.zero-by-zero", a.is_zero & b.is_zero, Const(0)) | a.is_inf & b.is_inf
        s = p.cut(
            a=a.significand,
            b=b.significand,
            exponent=a.effective_exponent - b.effective_exponent,
            sign=a.sign if self.positive_divisor else a.sign ^ b.sign,
            nan=nan,
            inf=a.is_inf | b.is_zero,
            zero=a.is_zero | fault(self.faults, "divide.by-infinity", b.is_inf, Const(0)),
        )
        special = ("sign", "nan", "inf", "zero")
        s = p.cut(
            a=s.a,
            b=s.b,
            zeros_a=leading_zeros(p, s.a),
            zeros_b=leading_zeros(p, s.b),
            exponent=s.exponent,
            **carried(s, special),
        )
        split = min(3, len(s.zeros_a))
        exponent = s.exponent.as_signed() - s.zeros_a
        s = p.cut(
            a=shift_left(p, s.a, s.zeros_a[split:], 1 << split),
            b=shift_left(p, s.b, s.zeros_b[split:], 1 << split),
            zeros_a=s.zeros_a[:split],
            zeros_b=s.zeros_b[:split],
            all_b=s.zeros_b,
            exponent=exponent[: self._exponent_bits],
            **carried(s, special),
        )
        # One less for the bit before the point, which `finish` takes as of weight 2, and one less for what it calls the
        # exponent.
        exponent = s.exponent.as_signed() + s.all_b + (fmt.bias - 2)
        largest = (1 << (self._exponent_bits - 1)) - 1
        return p.cut(
            a=shift_left(p, s.a, s.zeros_a),
            b=shift_left(p, s.b, s.zeros_b),
            exponent=Mux(s.inf, largest, Mux(s.zero, ~largest, exponent))[: self._exponent_bits],
            **carried(s, ("sign", "nan")),
        )

    def _digits(self, p: Pipeline, s: SimpleNamespace) -> SimpleNamespace:
        """What remains after the last digit, and the digits but for that one, inverted: the remainders' signs."""
        known = ("b", "exponent", "sign", "nan")
        s = p.cut(remainder=divide_first(s.a, s.b), signs=Const(0, 0), **carried(s, known))
        for _ in range(1, self.digits):
            signs = Cat(s.remainder[-1], s.signs)
            s = p.cut(remainder=divide_digit(p, s.remainder, s.b), signs=signs, **carried(s, known))
        return s

    def _exact(self, p: Pipeline, s: SimpleNamespace) -> Raw:
        """The two steps before `finish`."""
        fmt = self.fmt
        exponent = s.exponent.as_signed()
        remainder = fault(
            self.faults,
            "divide.remainder-not-put-right",
            divide_put_right(p, s.remainder, s.b),
            s.remainder[: fmt.precision],
        )
        s = p.cut(
            signs=Cat(s.remainder[-1], s.signs),
            remainder=remainder,
            too_small=exponent[-1],
            down=(-exponent)[: self._exponent_bits],
            **carried(s, ("exponent", "sign", "nan")),
        )
        beyond = s.down[self._bits :].any()
        s = p.cut(
            signs=s.signs,
            sticky=s.remainder.any(),
            amount=(s.down[: self._bits] | beyond.replicate(self._bits)) & s.too_small.replicate(self._bits),
            exponent=s.exponent[:-1] & ~s.too_small.replicate(self._exponent_bits - 1),
            **carried(s, ("sign", "nan")),
        )
        return Raw(~s.signs, s.amount, s.sticky, s.exponent, s.sign, s.nan, Const(0))
