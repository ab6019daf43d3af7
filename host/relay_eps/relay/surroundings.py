"""What a step finds around it, and leaves as it was: random streams, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from relay_eps.errors import RelayError
from relay_eps.relay.randomness import global_stream_kept


@contextmanager
def step_surroundings(device: torch.device) -> Iterator[None]:
    """For a step: the caller's random streams are kept, autocast keeps no weights.

    Raises RelayError inside ``torch.inference_mode``, where autograd cannot work.
    """
    if torch.is_inference_mode_enabled():
        raise RelayError("a step cannot run inside torch.inference_mode(): call it outside")
    with global_stream_kept(device), without_autocast_cache():
        yield


@contextmanager
def without_autocast_cache() -> Iterator[None]:
    """Autocast keeps its copies of weights until it is left: they would be stale in the next step, and hold the whole
    model on the device.
    """
    cached = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
