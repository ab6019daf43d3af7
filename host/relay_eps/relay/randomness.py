"""Keyed randomness: each (step, layer, micro-batch) draws from a state of its own.

The relay runs a layer's forward twice, in another order than plain training does. Seeding the generators by a counter
hash of (seed, step, layer, micro-batch) makes the recompute draw what the first forward drew, whatever the order.
A plain training loop that calls `seed_generators` before each layer draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1


def key(seed: int, step: int, layer: int, micro: int) -> int:
    """A 63-bit generator seed for one (step, layer, micro-batch): the splitmix64 finaliser over the four counters."""
    state = 0
    for counter in (seed, step, layer, micro):
        state = _mix((state + 0x9E3779B97F4A7C15 + counter) & _MASK)
    return state >> 1


def seed_generators(seed: int, step: int, layer: int, micro: int, device: torch.device) -> None:
    """Seed torch's global CPU generator, and every CUDA generator in use, for one (step, layer, micro-batch)."""
    value = key(seed, step, layer, micro)
    torch.default_generator.manual_seed(value)
    for generator in _cuda_generators(device):
        generator.manual_seed(value)


@contextmanager
def global_stream_kept(device: torch.device) -> Iterator[None]:
    """Leave the caller's global random streams (CPU and CUDA) as they were, however the block ends."""
    generators = [torch.default_generator, *_cuda_generators(device)]
    states = [g.get_state() for g in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _cuda_generators(device: torch.device) -> tuple[torch.Generator, ...]:
    if device.type != "cuda":
        return ()
    return tuple(torch.cuda.default_generators)


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
