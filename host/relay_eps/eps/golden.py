"""The golden model: AdamA's arithmetic in plain numpy, the judge that every kernel and circuit is held against.

Each line is one fp32 operation rounded to nearest even, in the order of the brackets, never fused::

    gs = g * scale
    m' = (first ? b1*m : m) + c1*gs
    v' = (first ? b2*v : v) + c2*(gs*gs)
    d  = sqrt(v') * r2 + eps
    p' = p*k - s*(m'/d)

The rule is Adam Accumulation (arXiv 2305.19982) with decoupled weight decay; a result that is NaN is any NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.formats import widen
from relay_eps.eps.hyper import ApplyScalars, FoldScalars

Array = NDArray[np.float32]


def fold(m: Array, v: Array, g: NDArray, c: FoldScalars, *, scale: float, first: bool) -> tuple[Array, Array]:
    """m and v after one gradient ``g`` (fp32, fp16, or bf16 bits; any shape, the same for all)."""
    b1, c1, b2, c2 = np.float32(c.b1), np.float32(c.c1), np.float32(c.b2), np.float32(c.c2)
    with np.errstate(all="ignore"):
        gs = widen(g) * np.float32(scale)
        kept_m = b1 * m if first else m
        kept_v = b2 * v if first else v
        return kept_m + c1 * gs, kept_v + c2 * (gs * gs)


def apply(p: Array, m: Array, v: Array, c: ApplyScalars) -> Array:
    """p after one update from m and v."""
    r2, eps, k, s = np.float32(c.r2), np.float32(c.eps), np.float32(c.k), np.float32(c.s)
    with np.errstate(all="ignore"):
        d = np.sqrt(v) * r2 + eps
        return p * k - s * (m / d)


def accumulate(total: Array, g: NDArray, *, first: bool) -> Array:
    """The summed gradient after ``g``: the first is copied (widened), later ones are added."""
    if first:
        return widen(g).copy()
    with np.errstate(all="ignore"):
        return total + widen(g)
