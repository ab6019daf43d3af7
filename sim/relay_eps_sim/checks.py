"""What a user can pass wrongly to a simulated design, refused before it reaches the C++."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bits = NDArray[np.uint32]


def bits(name: str, values: ArrayLike) -> Bits:
    """``values`` as an array of 32-bit patterns; ValueError for anything but integers from 0 to 2**32 - 1."""
    array = np.asarray(values)
    if array.dtype.kind not in "biu":
        raise ValueError(f"{name} is an array of {array.dtype}: pass bits, of floats .view(np.uint32)")
    if array.dtype != np.uint32 and array.size and not 0 <= int(array.min()) <= int(array.max()) < 1 << 32:
        raise ValueError(f"{name} has values outside 0 to 2**32 - 1: pass the bits of 32-bit words")
    return np.ascontiguousarray(array, np.uint32)


def probability(name: str, value: float) -> float:
    """``value`` itself; ValueError unless it is from 0 to 0.99: with more, a run takes for ever."""
    if not 0 <= value <= 0.99:
        raise ValueError(f"{name} = {value!r} is not supported: use a probability from 0 to 0.99")
    return value


def seed(value: object) -> int:
    """``value`` itself; ValueError unless it is a seed of 31 bits."""
    if not isinstance(value, (int, np.integer)) or not 0 <= value < 1 << 31:
        raise ValueError(f"a seed of {value!r} is not supported: use 0 to 2**31 - 1")
    return int(value)
