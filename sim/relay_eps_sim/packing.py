"""Beats as arrays: between named columns of fields and the words of a payload."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from relay_eps_sim import checks

Words = NDArray[np.uint32]
#: Where each field of a payload lies: its lowest bit and its width.
Places = Mapping[str, tuple[int, int]]


def pack(places: Places, columns: Mapping[str, NDArray], words: int) -> Words:
    """Payloads of ``words`` 32-bit words, a row a beat, from one column of bits a field; fields left out are 0.

    Raises ValueError for a field that there is not, for columns of no or of several lengths, and for a column that is
    not of integers that its field holds.
    """
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise ValueError(f"the columns of the fields have one length, not {sorted(lengths) or 'none'}")
    (beats,) = lengths
    # Column-major, so that each field's words lie together while they are written.
    packed = np.zeros((words, beats), np.uint32)
    for name, values in columns.items():
        if name not in places:
            raise ValueError(f"there is no field {name!r}: use some of {', '.join(places)}")
        offset, width = places[name]
        value = checks.bits(name, values).astype(np.uint64)
        if (value >> np.uint64(width)).any():
            raise ValueError(f"{name} has values of more than the {width} bits of its field")
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
