"""Functional coverage: which kinds of operands, results and roundings there are among vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from relay_eps_hw.floats.formats import FloatFormat
from tests.hw.oracle import INEXACT, INVALID, Judged, is_nan

Bits = NDArray[np.uint32]


def kinds(
    operands: tuple[Bits, ...], source: FloatFormat, judged: Judged, fmt: FloatFormat, exact: NDArray[np.float64]
) -> dict[str, NDArray[np.bool_]]:
    """Which vectors are of each kind; a vector can be of several.

    Args:
        operands: bits in the format ``source``.
        judged: SoftFloat's results in ``fmt``, and its flags.
        exact: the result in double precision: of sums and products of most floats it is the exact one.
    """
    magnitude = [bits & np.uint32((1 << (source.width - 1)) - 1) for bits in operands]
    result = judged.bits & np.uint32((1 << (fmt.width - 1)) - 1)
    nan_in = np.any([is_nan(bits, source) for bits in operands], axis=0)
    infinite_in = np.any([bits == source.infinity for bits in magnitude], axis=0)
    inexact = (judged.flags & INEXACT) != 0
    finite = result < fmt.infinity
    value = np.abs(to_double(judged.bits, fmt))
    with np.errstate(all="ignore"):
        exact = np.abs(exact)
        # The other neighbour of what was rounded.
        other = np.abs(to_double(np.where(value > exact, result - 1, result + 1).astype(np.uint32), fmt))
        tie = inexact & finite & (np.abs(value - exact) == np.abs(other - exact))
    return {
        "NaN operand": nan_in,
        "infinite operand": infinite_in,
        "zero operand": np.any([bits == 0 for bits in magnitude], axis=0),
        "subnormal operand": np.any([(bits > 0) & (bits < 1 << source.fraction) for bits in magnitude], axis=0),
        "invalid": (judged.flags & INVALID != 0) & ~nan_in,
        "overflow": (result == fmt.infinity) & inexact,
        "underflow to zero": (result == 0) & inexact,
        "subnormal result": (result > 0) & (result < 1 << fmt.fraction),
        "smallest normal result": result == 1 << fmt.fraction,
        "zero result": result == 0,
        "exact result": ~inexact & finite,
        "rounded up": inexact & finite & (value > exact),
        "rounded down": inexact & finite & (value < exact),
        "tie up": tie & (value > exact),
        "tie down": tie & (value < exact),
    }


def to_double(bits: Bits, fmt: FloatFormat) -> NDArray[np.float64]:
    """The values of ``bits`` in a format of at most 32 bits."""
    sign = np.where(bits >> np.uint32(fmt.width - 1) & 1, -1.0, 1.0)
    stored = (bits >> np.uint32(fmt.fraction) & np.uint32(fmt.exponent_max)).astype(np.int64)
    fraction = (bits & np.uint32((1 << fmt.fraction) - 1)).astype(np.float64)
    significand = np.where(stored > 0, fraction + 2.0**fmt.fraction, fraction)
    value = np.ldexp(significand, np.maximum(stored, 1) - fmt.bias - fmt.fraction)
    special = np.where(fraction > 0, np.nan, np.inf)
    return sign * np.where(stored == fmt.exponent_max, special, value)
