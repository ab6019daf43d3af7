"""Device bytes: what a step holds on the device at its worst.

On a CUDA device that is torch's own peak counter. On a CPU it is the bytes of the live storages that the step
allocates, the relay's slots and gradient buffers included, what stands for host memory (the EPS, the offloaded stash)
excluded. Memory that kernels use inside a call is not seen on a CPU.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_on_host = 0


@contextmanager
def on_host() -> Iterator[None]:
    """What is allocated in this block stands for host memory, and is not counted as the device's."""
    global _on_host
    _on_host += 1
    try:
        yield
    finally:
        _on_host -= 1


class DevicePeak:
    """The result of a measurement: ``bytes`` is the peak, valid after the block."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def measure(device: torch.device, resident: int) -> Iterator[DevicePeak]:
    """Measure the device's peak over a block; ``resident`` bytes were allocated before it (CPU only). Slow on a CPU."""
    peak = DevicePeak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.bytes = torch.cuda.max_memory_allocated(device)
        return
    with _StorageCounter() as counter:
        yield peak
    peak.bytes = resident + counter.peak


class _StorageCounter(TorchDispatchMode):
    """Counts the bytes of storages that operations allocate and that are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not _on_host:
            given = {_identity(t) for t in _tensors((args, kwargs))}
            for tensor in _tensors(out):
                if _identity(tensor) not in given:
                    self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        identity = storage._cdata
        if identity in self._alive:
            return
        size = storage.nbytes()
        self._alive[identity] = weakref.ref(storage, functools.partial(self._freed, identity, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _freed(self, identity: int, size: int, _: object) -> None:
        self._alive.pop(identity, None)
        self.live -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _identity(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
