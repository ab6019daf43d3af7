"""Beats as arrays: between named columns of fields and the words of a payload."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
#: Where each field of a payload lies: its lowest bit and its width.
Places = Mapping[str, tuple[int, int]]


def pack(places: Places, columns: Mapping[str, NDArray], words: int) -> Words:
    """Payloads of ``words`` 32-bit words, a row a beat, from one column of values a field; fields left out are 0."""
    beats = len(next(iter(columns.values())))
    # Column-major, so that each field's words lie together while they are written.
    packed = np.zeros((words, beats), np.uint32)
    for name, values in columns.items():
        offset, width = places[name]
        value = np.asarray(values).astype(np.uint64) & np.uint64((1 << width) - 1)
        shifted = value << np.uint64(offset % 32)
        packed[offset // 32] |= shifted.astype(np.uint32)
        if offset % 32 + width > 32:
            packed[offset // 32 + 1] |= (shifted >> np.uint64(32)).astype(np.uint32)
    return np.ascontiguousarray(packed.T)


def unpack(places: Places, name: str, payloads: Words) -> Words:
    """The column of the field ``name`` from payloads, a row a beat."""
    offset, width = places[name]
    value = payloads[:, offset // 32].astype(np.uint64) >> np.uint64(offset % 32)
    if offset % 32 + width > 32:
        value |= payloads[:, offset // 32 + 1].astype(np.uint64) << np.uint64(32 - offset % 32)
    return (value & np.uint64((1 << width) - 1)).astype(np.uint32)
