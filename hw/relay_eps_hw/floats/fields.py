"""The fields of a float, and what they say."""

from __future__ import annotations

from amaranth.hdl import Cat, Value

from relay_eps_hw.floats.formats import FloatFormat


class Fields:
    """The fields of the float ``bits``: views, and two-level tests of them; no registers.

    Attributes:
        sign, exponent, fraction: the stored fields.
        hidden (1): the significand's top bit; 0 for zeros and subnormals.
        effective_exponent: the stored exponent, 1 for subnormals and zeros: what the significand is scaled by.
        significand (precision): the fraction under the hidden bit.
        is_nan, is_inf, is_zero (1): what the value is.
    """

    def __init__(self, fmt: FloatFormat, bits: Value) -> None:
        self.fraction = bits[: fmt.fraction]
        self.exponent = bits[fmt.fraction : -1]
        self.sign = bits[-1]
        self.hidden = self.exponent.any()
        self.effective_exponent = Cat(self.exponent[0] | ~self.hidden, self.exponent[1:])
        self.significand = Cat(self.fraction, self.hidden)
        top = self.exponent.all()
        some = self.fraction.any()
        self.is_nan = top & some
        self.is_inf = top & ~some
        self.is_zero = ~self.hidden & ~some
