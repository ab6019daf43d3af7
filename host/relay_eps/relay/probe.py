"""Is a 16-bit format worth computing in on this processor? Measured, never assumed."""

from __future__ import annotations

import logging
import time
from functools import lru_cache

import torch

from relay_eps.eps.formats import Format
from relay_eps.relay.link import TORCH_DTYPES

log = logging.getLogger("relay_eps")
_SIZE = 256


@lru_cache
def slowdown(fmt: Format) -> float:
    """Time of a small matrix product on the CPU in ``fmt`` over its time in fp32; best of five each."""
    return _best_time(TORCH_DTYPES[fmt]) / _best_time(torch.float32)


@lru_cache
def warn_if_slow(device: torch.device, wire: Format) -> None:
    """Say so once where the user asks a CPU to compute in a format that it has no instructions for."""
    if device.type != "cpu" or wire is Format.FP32:
        return
    factor = slowdown(wire)
    if factor > 2:
        log.warning("%s products run %.0f times slower than fp32 on this CPU: use wire='fp32'", wire.value, factor)


def _best_time(dtype: torch.dtype) -> float:
    a = torch.ones(_SIZE, _SIZE, dtype=dtype)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - started)
    return best
