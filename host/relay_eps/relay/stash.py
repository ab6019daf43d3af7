"""Values kept between a layer's runs: the stash of layer inputs, boundary gradients, side inputs.

Each value is a list of pytree leaves under a key. Tensors stay on the device, or go to host memory and come back for
each use: then the device holds one micro-batch's values at a time, whatever the depth and the number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from relay_eps.relay.link import Link


@dataclass(frozen=True)
class _Offloaded:
    handle: Any


class Stash:
    """Leaves by key, on the device or on the host."""

    def __init__(self, link: Link, *, on_host: bool) -> None:
        self._link = link
        self._on_host = on_host
        self._values: dict[Hashable, list[Any]] = {}

    def put(self, key: Hashable, leaves: Sequence[Any]) -> None:
        """Keep ``leaves`` (tensors of any dtype, None, plain values) under ``key``."""
        self._values[key] = [self._keep(leaf) for leaf in leaves]

    def get(self, key: Hashable) -> list[Any]:
        """The leaves, on the device."""
        return [self._link.load(v.handle) if isinstance(v, _Offloaded) else v for v in self._values[key]]

    def has(self, key: Hashable) -> bool:
        """Whether anything is kept under ``key``."""
        return key in self._values

    def pop(self, key: Hashable) -> list[Any]:
        """The leaves, on the device, and forget them."""
        leaves = self.get(key)
        self.drop(key)
        return leaves

    def drop(self, key: Hashable) -> None:
        """Forget a value."""
        for value in self._values.pop(key, ()):
            if isinstance(value, _Offloaded):
                self._link.forget(value.handle)

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self._values):
            self.drop(key)

    def _keep(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.detach()
        # What a layer keeps off the device stays where it is.
        return _Offloaded(self._link.offload(leaf)) if self._on_host and leaf.device == self._link.device else leaf
