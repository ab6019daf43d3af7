"""Operands for the float units: special values in all pairs, sweeps, near misses, and random ones of several kinds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint32]
SIGN = np.uint32(1 << 31)
FRACTION = np.uint32(0x007F_FFFF)


def _specials() -> Bits:
    fractions = [0, 1, 2, 3, 0x1000, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFE, 0x7F_FFFF]
    # Subnormals and zero; the edges of the range; about 1; where sums, products and 16-bit formats round or overflow.
    exponents = [0, 1, 2, 64, 103, 112, 113, 126, 127, 128, 142, 150, 151, 190, 253, 254]
    finite = [exponent << 23 | fraction for exponent in exponents for fraction in fractions]
    others = [0x7F80_0000, 0x7F80_0001, 0x7FBF_FFFF, 0x7FC0_0000, 0x7FFF_FFFF]
    positive = np.array([*finite, *others], np.uint32)
    return np.concatenate([positive, positive | SIGN])


#: Zeros, edges of the subnormals, ties, edges of overflow and underflow, infinities and NaNs.
SPECIALS = _specials()


def special_pairs() -> tuple[Bits, Bits]:
    """All pairs of `SPECIALS`."""
    a, b = np.meshgrid(SPECIALS, SPECIALS, indexing="ij")
    return a.ravel(), b.ravel()


def exponent_sweep(rng: np.random.Generator, each: int = 12) -> tuple[Bits, Bits]:
    """All differences of exponents up to 40 either way, at some exponents, with random and extreme fractions."""
    difference = np.repeat(np.arange(-40, 41), 8 * each)
    base = np.tile(np.repeat([1, 24, 41, 64, 127, 190, 213, 254], each), 81)
    other = base + difference
    inside = (other >= 0) & (other <= 254)
    base, other = base[inside].astype(np.uint32), other[inside].astype(np.uint32)

    def fractions(count: int) -> Bits:
        edge = rng.choice(np.array([0, 1, 0x3F_FFFF, 0x40_0000, 0x7F_FFFF], np.uint32), count)
        return np.where(rng.random(count) < 0.5, edge, rng.integers(1 << 23, size=count, dtype=np.uint32))

    signs = rng.integers(4, size=len(base), dtype=np.uint32)
    a = base << np.uint32(23) | fractions(len(base)) | (signs & 1) << np.uint32(31)
    b = other << np.uint32(23) | fractions(len(base)) | (signs >> 1) << np.uint32(31)
    return a, b


def every_exponent_pair(rng: np.random.Generator) -> tuple[Bits, Bits]:
    """All pairs of exponents, zeros, subnormals, infinities and NaNs among them, with random and extreme fractions."""
    exponents = np.arange(256, dtype=np.uint32) << np.uint32(23)
    a, b = (side.ravel() for side in np.meshgrid(exponents, exponents, indexing="ij"))

    def others(count: int) -> Bits:
        edge = rng.choice(np.array([0, 1, 0x40_0000, 0x7F_FFFF], np.uint32), count)
        fraction = np.where(rng.random(count) < 0.5, edge, rng.integers(1 << 23, size=count, dtype=np.uint32))
        return fraction | rng.integers(2, size=count, dtype=np.uint32) << np.uint32(31)

    return a | others(len(a)), b | others(len(b))


def cancellations(rng: np.random.Generator) -> tuple[Bits, Bits]:
    """At every exponent, sums that cancel wholly, or all but for a unit or one bit; random and extreme fractions."""
    fractions = np.concatenate(
        [np.array([0, 1, 0x40_0000, 0x7F_FFFF], np.uint32), rng.integers(1 << 23, size=4, dtype=np.uint32)]
    )
    a = (np.arange(255, dtype=np.uint32)[:, None] << np.uint32(23) | fractions).ravel()
    bit = np.uint32(1) << rng.integers(24, size=len(a), dtype=np.uint32)
    a = np.tile(a, 4)
    a |= rng.integers(2, size=len(a), dtype=np.uint32) << np.uint32(31)
    whole, more, less, one_bit = np.split(a ^ SIGN, 4)
    return a, np.concatenate([whole, more + np.uint32(1), less - np.uint32(1), one_bit ^ bit])


def near_exact_quotients(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    """Quotients that are exact, and such as miss it by a unit in the dividend's last place."""
    quotient = rng.integers(1, 1 << 12, size=count)
    divisor = rng.integers(1, 1 << 12, size=count)
    dividend = (quotient * divisor).astype(np.float32).view(np.uint32)
    dividend = (dividend.astype(np.int64) + rng.integers(-1, 2, size=count)).astype(np.uint32)
    return dividend, divisor.astype(np.float32).view(np.uint32)


def near_exact_roots(rng: np.random.Generator, count: int) -> Bits:
    """Squares, and such as miss it by a unit in the last place, at even and odd exponents."""
    square = (rng.integers(1, 1 << 12, size=count) ** 2).astype(np.float32).view(np.uint32)
    moved = square.astype(np.int64) + (rng.integers(-70, 70, size=count) << 23) + rng.integers(-1, 2, size=count)
    return np.clip(moved, 0, 0x7F7F_FFFF).astype(np.uint32)


def _any_bits(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    return rng.integers(1 << 32, size=count, dtype=np.uint32), rng.integers(1 << 32, size=count, dtype=np.uint32)


def _near_exponents(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    a, b = _any_bits(rng, count)
    exponent = (a >> np.uint32(23) & np.uint32(255)).astype(np.int64) + rng.integers(-26, 27, size=count)
    return a, (b & (SIGN | FRACTION)) | np.clip(exponent, 0, 255).astype(np.uint32) << np.uint32(23)


def _opposite_exponents(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    # Products near the ends of the range, and quotients where the roles of b are turned round.
    a, b = _any_bits(rng, count)
    exponent = (a >> np.uint32(23) & np.uint32(255)).astype(np.int64)
    centre = rng.choice([127 - 149, 127 - 126, 127, 254, 380], count)
    other = np.where(rng.random(count) < 0.5, centre - exponent, exponent - centre + 254)
    other += rng.integers(-28, 29, size=count)
    return a, (b & (SIGN | FRACTION)) | np.clip(other, 0, 254).astype(np.uint32) << np.uint32(23)


def _few_bits(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    # Sums, products and quotients of few bits are often exact, or ties.
    a, b = _near_exponents(rng, count)
    short = np.uint32(0x7FF) << rng.integers(0, 13, size=count, dtype=np.uint32) & FRACTION
    return a & ~(FRACTION & ~short), b & ~(FRACTION & ~np.uint32(0x7F_F000))


def _subnormals(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    a, b = _any_bits(rng, count)
    scaled = b & (SIGN | FRACTION) | rng.integers(0, 255, size=count, dtype=np.uint32) << np.uint32(23)
    small = np.uint32(0x80FF_FFFF)
    a = (
        a
        & small
        & ~(np.uint32(0xFFFF_FFFF) >> np.uint32(9) & ~(FRACTION >> rng.integers(23, size=count, dtype=np.uint32)))
    )
    return a, np.where(rng.random(count) < 0.5, scaled, b & small)


DISTRIBUTIONS = (_any_bits, _near_exponents, _opposite_exponents, _few_bits, _subnormals)


def random_pairs(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    """``count`` pairs, an equal part of each distribution, in random roles."""
    pairs = [make(rng, count // len(DISTRIBUTIONS) + 1) for make in DISTRIBUTIONS]
    a, b = (np.concatenate(part)[:count] for part in zip(*pairs, strict=True))
    swap = rng.random(count) < 0.3
    return np.where(swap, b, a), np.where(swap, a, b)
