"""Comparing arrays bit for bit, and arrays full of the values that arithmetic goes wrong on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.formats import Format, narrow, widen


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The bit patterns of ``array`` (fp32, fp16, or bf16 bits), every NaN as one and the same."""
    whole = np.ascontiguousarray(array)
    patterns = whole.view(np.uint32 if whole.dtype.itemsize == 4 else np.uint16).copy()
    patterns[np.isnan(widen(whole))] = np.iinfo(patterns.dtype).max
    return patterns


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether ``a`` and ``b`` have the same dtype, shape and bits; a NaN equals any NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(bits(a), bits(b)))


def assert_same_bits(got: NDArray[Any], wanted: NDArray[Any], what: str = "array") -> None:
    """Fails with the first element that differs."""
    assert got.dtype == wanted.dtype, f"{what}: dtype {got.dtype}, not {wanted.dtype}"
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, not {wanted.shape}"
    differ = np.flatnonzero(bits(got).ravel() != bits(wanted).ravel())
    if differ.size:
        at = differ[0]
        g, w = got.ravel()[at], wanted.ravel()[at]
        raise AssertionError(f"{what}: {differ.size} of {got.size} differ; element {at} is {g!r}, not {w!r}")


_HARD = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.1754942e-38,
        1.17549435e-38,
        3.4028235e38,
        -3.4028235e38,
        1.0,
    ],
    np.float32,
)


def hard_values(rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    """fp32 values over all exponents, one in eight special: zeros, subnormals, the largest, infinity, NaN."""
    wild = rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
    tame = rng.standard_normal(size, np.float32)
    kind = rng.integers(0, 8, size)
    return np.where(kind == 0, rng.choice(_HARD, size), np.where(kind < 3, wild, tame)).astype(np.float32)


def hard_gradient(rng: np.random.Generator, size: int, fmt: Format) -> NDArray[Any]:
    """As `hard_values`, in ``fmt``'s carrier; 16-bit formats also get any bit pattern at all."""
    if fmt is Format.FP32:
        return hard_values(rng, size)
    wild = rng.integers(0, 2**16, size, dtype=np.uint16).view(fmt.carrier)
    return np.where(rng.integers(0, 4, size) == 0, wild, narrow(hard_values(rng, size), fmt))
