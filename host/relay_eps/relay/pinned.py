"""Page-locked host memory of exactly the size asked for, so that a CUDA device copies to and from it by itself.

torch's own pinned allocator rounds up to powers of two, up to twice the memory; registering pages of our own does not.
Where the system allows no more locked memory, plain memory serves, slower, and that is said once.
"""

from __future__ import annotations

import logging
import weakref

import numpy as np
import torch
from numpy.typing import NDArray

from relay_eps.eps.memory import aligned_empty

log = logging.getLogger("relay_eps")
_said: set[str] = set()


def pinned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Uninitialised bytes, page-aligned and page-locked; pageable where locking fails. Unlocked when freed."""
    array = aligned_empty(nbytes)
    if nbytes == 0:
        return array
    address = array.ctypes.data
    runtime = torch.cuda.cudart()
    code = int(runtime.cudaHostRegister(address, nbytes, 0))
    if code != 0:
        _say_once(nbytes, code)
        return array
    weakref.finalize(_owner(array), runtime.cudaHostUnregister, address)
    return array


def _owner(array: NDArray[np.uint8]) -> object:
    """What lives as long as the memory: views of ``array`` keep its base alive, not ``array`` itself."""
    return array if array.base is None else array.base


def _say_once(nbytes: int, code: int) -> None:
    if "pageable" not in _said:
        _said.add("pageable")
        log.warning(
            "the system refused to page-lock %.1f MiB of host memory (CUDA error %d): pageable memory is used, and "
            "copies to and from the device are slower; `ulimit -l unlimited` may mend it",
            nbytes / 2**20,
            code,
        )
