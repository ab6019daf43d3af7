"""Page-locked host memory of exactly the size asked for, so that a CUDA device copies to and from it by itself.

torch's own pinned allocator rounds up to powers of two, up to twice the memory; registering pages of our own does not.
Where the system allows no more locked memory, plain memory serves, slower, and that is said once.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from relay_eps.eps.memory import aligned_empty

log = logging.getLogger("relay_eps")
_said: set[str] = set()


def pinned_empty(nbytes: int, device: torch.device | None = None) -> NDArray[np.uint8]:
    """Zero bytes, page-aligned and page-locked for ``device`` (default: torch's current one).

    Pageable where locking fails. Unlocked when the last view of the array is gone; processes forked from this one do
    not get the memory, since locked pages that two processes share may part company with what the device sees.
    """
    array = aligned_empty(nbytes)
    if nbytes == 0:
        return array
    # -1 leaves the current device as it is.
    with torch.cuda.device(-1 if device is None else device):
        runtime = torch.cuda.cudart()
        code = int(runtime.cudaHostRegister(array.ctypes.data, nbytes, 0))
        if code != 0:
            _clear_error()
            _say_once(nbytes, code)
            return array
    _keep_from_forks(array)
    return np.asarray(_Locked(array, runtime))


class _Locked:
    """Owner of locked memory. A finalizer on the array's own base would run after the memory is unmapped."""

    def __init__(self, array: NDArray[np.uint8], runtime: Any) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__
        unlock = weakref.finalize(self, _unlock, runtime, array.ctypes.data, os.getpid())
        # The end of the process unlocks everything; before it, a copy may still be under way.
        unlock.atexit = False


def _unlock(runtime: Any, address: int, owner: int) -> None:
    # A forked child holds the objects, but neither the memory nor a CUDA context.
    if os.getpid() == owner:
        runtime.cudaHostUnregister(address)


def _keep_from_forks(array: NDArray[np.uint8]) -> None:
    pages = getattr(array.base, "obj", array.base)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTFORK"):
        with suppress(OSError):
            pages.madvise(mmap.MADV_DONTFORK)


def _clear_error() -> None:
    """The runtime keeps a failed call's error and blames the next kernel for it: let one of no importance take it."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):
            torch.ones(1, device="cuda")


def _say_once(nbytes: int, code: int) -> None:
    if "pageable" not in _said:
        _said.add("pageable")
        log.warning(
            "the system refused to page-lock %.1f MiB of host memory (CUDA error %d): pageable memory is used, and "
            "copies to and from the device are slower; `ulimit -l unlimited` may mend it",
            nbytes / 2**20,
            code,
        )
