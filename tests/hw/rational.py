"""Floats of any format as exact rational numbers, and back to nearest even: the judge at small formats."""

from __future__ import annotations

from fractions import Fraction

from relay_eps_hw.floats.formats import FloatFormat


def value(fmt: FloatFormat, bits: int) -> Fraction | None:
    """The exact value of a finite pattern; None for infinities and NaNs."""
    exponent = bits >> fmt.fraction & fmt.exponent_max
    fraction = bits & ((1 << fmt.fraction) - 1)
    if exponent == fmt.exponent_max:
        return None
    significand = fraction if exponent == 0 else fraction + (1 << fmt.fraction)
    magnitude = Fraction(significand) * Fraction(2) ** (max(exponent, 1) - fmt.bias - fmt.fraction)
    return -magnitude if bits & fmt.negative_zero else magnitude


def nearest(fmt: FloatFormat, exact: Fraction, *, negative: bool) -> int:
    """The bits of ``exact``, rounded to nearest even; ``negative`` is the sign, of a zero too."""
    sign = fmt.negative_zero if negative else 0
    magnitude = abs(exact)
    least = 1 - fmt.bias
    scale = least
    while magnitude >= Fraction(2) ** (scale + 1):
        scale += 1
    units = magnitude / Fraction(2) ** (scale - fmt.fraction)
    # Python rounds a Fraction to nearest, ties to even.
    significand = round(units)
    # The hidden bit counts the exponent up, and so does a significand that was rounded up to two.
    bits = ((scale - least) << fmt.fraction) + significand
    return sign | min(bits, fmt.infinity)
