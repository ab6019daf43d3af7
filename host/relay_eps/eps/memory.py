"""Memory for large flat sections: whole pages straight from the kernel, huge ones where it can give them.

A pass over sections in 4 KiB pages spends much of its time in page-table walks; 2 MiB pages end that. Memory comes
from its own mapping, so it is exactly as large as asked (rounded up to pages) and goes back when its array does.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray


def aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """A new flat uint8 array of ``nbytes`` zero bytes that starts on a page (so on 64 bytes too).

    Pages are taken from the system when they are first touched. The mapping ends with the last view of the array.
    Raises ValueError for a negative size, and MemoryError where the system refuses the mapping.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes must not be negative, but is {nbytes}")
    if nbytes == 0:
        return np.zeros(0, np.uint8)
    return np.frombuffer(_mapping(nbytes), dtype=np.uint8, count=nbytes)


class Returning:
    """Gives freed memory back to the system as it gathers: the C library keeps pages for later, gigabytes of them.

    For loops that free large pieces of ordinary memory; that of `aligned_empty` goes back by itself. Does nothing where
    the C library cannot be told.
    """

    #: Bytes that may gather: the call takes about a millisecond.
    EVERY = 1 << 24

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._freed = 0

    def freed(self, nbytes: int) -> None:
        """``nbytes`` more were freed."""
        self._freed += nbytes
        if self._freed >= self.EVERY:
            self.flush()

    def flush(self) -> None:
        """Give back what has gathered."""
        self._freed = 0
        if self._trim is not None:
            self._trim(0)


def _mapping(nbytes: int) -> mmap.mmap:
    size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        # Private: shared anonymous memory is a file to the kernel, and seldom gets huge pages.
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"the system refused a mapping of {size} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel built without transparent huge pages says EINVAL; the memory is as good, only slower.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
