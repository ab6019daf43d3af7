"""Page-backed arrays: exactly sized, aligned, zero, and given back."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from relay_eps.eps.memory import aligned_empty

MIB = 2**20
STATM = Path("/proc/self/statm")
needs_statm = pytest.mark.skipif(not STATM.exists(), reason="reads the process's memory from /proc")


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(STATM.read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, mmap.PAGESIZE - 1, mmap.PAGESIZE, mmap.PAGESIZE + 1, 3 * MIB + 8])
def test_has_the_size_asked_for_is_zero_writable_and_starts_on_a_page(nbytes: int) -> None:
    array = aligned_empty(nbytes)
    assert array.dtype == np.uint8
    assert array.shape == (nbytes,)
    assert not array.any()
    array[:] = 255
    assert nbytes == 0 or array.ctypes.data % mmap.PAGESIZE == 0


@needs_statm
def test_a_view_keeps_the_memory_and_the_last_one_gives_it_back() -> None:
    view = aligned_empty(256 * MIB).view(np.float32)[:-1]
    view[:] = 1
    held = resident()
    assert view[-1] == 1
    del view
    gc.collect()
    assert held - resident() > 250 * MIB


@needs_statm
def test_untouched_memory_costs_nothing() -> None:
    before = resident()
    array = aligned_empty(1024 * MIB)
    assert resident() - before < 64 * MIB
    assert array.size == 1024 * MIB


def test_a_negative_size_and_an_impossible_one_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        aligned_empty(-1)
    with pytest.raises(MemoryError, match="refused a mapping"):
        aligned_empty(2**60)


def test_kernels_without_huge_pages_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert aligned_empty(4 * MIB).size == 4 * MIB
