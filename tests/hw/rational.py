"""Floats of any format as exact rational numbers, and back to nearest even: the judge at small formats."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import isqrt

from relay_eps_hw.floats.formats import FloatFormat


@cache
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
    if not magnitude:
        return sign
    # From the lengths of its terms the exponent is known but for one.
    scale = max(magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 1, least)
    if magnitude >= Fraction(2) ** (scale + 1):
        scale += 1
    units = magnitude / Fraction(2) ** (scale - fmt.fraction)
    # Python rounds a Fraction to nearest, ties to even.
    significand = round(units)
    # The hidden bit counts the exponent up, and so does a significand that was rounded up to two.
    bits = ((scale - least) << fmt.fraction) + significand
    return sign | min(bits, fmt.infinity)


def is_nan(fmt: FloatFormat, bits: int) -> bool:
    """Whether ``bits`` are a NaN."""
    return bits & ~fmt.negative_zero > fmt.infinity


def is_negative(fmt: FloatFormat, bits: int) -> bool:
    """Whether the sign of ``bits`` is set."""
    return bool(bits & fmt.negative_zero)


def add(fmt: FloatFormat, a: int, b: int) -> int:
    """``a + b``."""
    if is_nan(fmt, a) or is_nan(fmt, b):
        return fmt.nan
    x, y = value(fmt, a), value(fmt, b)
    if x is None or y is None:
        infinite, other = (a, b) if x is None else (b, a)
        return infinite if value(fmt, other) is not None or other == infinite else fmt.nan
    total = x + y
    both_negative = is_negative(fmt, a) and is_negative(fmt, b)
    return nearest(fmt, total, negative=total < 0 or (total == 0 and both_negative))


def multiply(fmt: FloatFormat, a: int, b: int) -> int:
    """``a * b``."""
    if is_nan(fmt, a) or is_nan(fmt, b):
        return fmt.nan
    negative = is_negative(fmt, a) != is_negative(fmt, b)
    x, y = value(fmt, a), value(fmt, b)
    if x is None or y is None:
        return fmt.nan if 0 in (x, y) else _infinity(fmt, negative)
    return nearest(fmt, x * y, negative=negative)


def divide(fmt: FloatFormat, a: int, b: int) -> int:
    """``a / b``."""
    if is_nan(fmt, a) or is_nan(fmt, b):
        return fmt.nan
    negative = is_negative(fmt, a) != is_negative(fmt, b)
    x, y = value(fmt, a), value(fmt, b)
    if (x is None and y is None) or (x == 0 and y == 0):
        return fmt.nan
    if x is None or y == 0:
        return _infinity(fmt, negative)
    return nearest(fmt, Fraction(0) if y is None else x / y, negative=negative)


def root(fmt: FloatFormat, a: int) -> int:
    """``sqrt(a)``."""
    x = value(fmt, a)
    if x == 0 or a == fmt.infinity:
        return a
    if x is None or x < 0:
        return fmt.nan
    # So many bits of it that what is left out is less than any two neighbours, or half way between, are apart.
    scale = 2 * fmt.bias + 2 * fmt.fraction
    scaled = x * 4**scale
    low = isqrt(int(scaled))
    beyond = Fraction(0 if low * low == scaled else 1, 2)
    return nearest(fmt, (low + beyond) / 2**scale, negative=False)


def _infinity(fmt: FloatFormat, negative: bool) -> int:
    return fmt.infinity | (fmt.negative_zero if negative else 0)
