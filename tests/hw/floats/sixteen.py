"""The 16-bit formats as numpy and ml_dtypes have them, and operands at every place where narrowing could go wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from relay_eps_hw.floats.formats import FP32
from relay_eps_hw.floats.wire import WireFormat
from tests.hw.oracle import is_nan

Bits = NDArray[np.uint32]

SIXTEEN = (WireFormat.BF16, WireFormat.FP16)
_TYPES: dict[WireFormat, DTypeLike] = {WireFormat.BF16: ml_dtypes.bfloat16, WireFormat.FP16: np.float16}


def all_values() -> Bits:
    """Every pattern of 16 bits."""
    return np.arange(1 << 16, dtype=np.uint32)


def widened(a: Bits, wire: WireFormat) -> Bits:
    """The fp32 bits of what lies in the low half of ``a``; ``a`` itself where the format is fp32."""
    if wire is WireFormat.FP32:
        return a
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return a.astype(np.uint16).view(_TYPES[wire]).astype(np.float32).view(np.uint32)


def narrowed(a: Bits, wire: WireFormat) -> Bits:
    """The bits of fp32 ``a`` in the format, to nearest even, in the low half."""
    if wire is WireFormat.FP32:
        return a
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        return a.view(np.float32).astype(_TYPES[wire]).view(np.uint16).astype(np.uint32)


def narrowing_edges(wire: WireFormat) -> Bits:
    """fp32 patterns: every value of the 16-bit format, every tie between two, the fp32 neighbours of both, and every
    tie with any one bit set below its own, which breaks it.
    """
    exact = widened(all_values(), wire)
    exact = exact[~is_nan(exact)]
    # Halfway to the next pattern. Past the largest value stands the power of two that it would have been.
    largest_exponent = 1 << (wire.format.exponent - 1)
    value = exact.view(np.float32).astype(np.float64)
    value = np.clip(value, -(2.0**largest_exponent), 2.0**largest_exponent)
    value = np.sort(value)
    ties = (value[:-1] + value[1:]) / 2
    assert np.array_equal(ties.astype(np.float32).astype(np.float64), ties), "a tie is exact in fp32"
    tie_bits = ties.astype(np.float32).view(np.uint32)
    middle = np.concatenate([exact, tie_bits])
    edges = [middle - np.uint32(1), middle, middle + np.uint32(1)]
    for bit in range(FP32.fraction):
        with_room = tie_bits[tie_bits & np.uint32((2 << bit) - 1) == 0]
        edges.append(with_room | np.uint32(1 << bit))
    return np.unique(np.concatenate(edges))


def edges_of_fp32() -> Bits:
    """Zeros, subnormal and normal edges, infinities, and NaNs with a single bit of payload, of both signs."""
    magnitudes = [0, 1, 2, 0x007F_FFFF, 0x0080_0000, 0x0080_0001, 0x3F80_0000, 0x7F7F_FFFF, 0x7F80_0000, 0x7FFF_FFFF]
    magnitudes += [0x7F80_0000 | 1 << bit for bit in range(23)]
    both = np.array(magnitudes, np.uint32)
    return np.concatenate([both, both | np.uint32(1 << 31)])
