"""The link between the EPS and the device: weights in, gradients out, activations to the host and back.

`LeasedLink` serves a CPU that uses the weights where they lie. Links that copy into slots are in `slots` (a modelled
link, for machines without a GPU) and `cuda`. The engine knows this interface only, so one code path serves them all.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from relay_eps.eps.contract import EagerParamServer, Lease, Ticket
from relay_eps.eps.formats import Format
from relay_eps.eps.layout import LayerLayout
from relay_eps.errors import RelayEpsError
from relay_eps.relay.layers import EpsLayer, LayerPlan
from relay_eps.relay.memory import on_host

TORCH_DTYPES = {Format.FP32: torch.float32, Format.BF16: torch.bfloat16, Format.FP16: torch.float16}


@dataclass(frozen=True)
class HostGradient:
    """A gradient buffer's contents in host memory, in a carrier dtype."""

    array: NDArray[Any]
    #: Whether ``array`` is the device buffer itself, so that the buffer is not free before the EPS is done.
    is_buffer: bool
    #: Called once when the EPS is done with ``array``.
    release: Callable[[], None]


class Link(ABC):
    """How one relay layer's weights come to the device while another computes, and how gradients leave it.

    The engine calls it from its own thread, but for `outbound` and `to_host`, which the outbound thread calls.
    """

    device: torch.device

    def __init__(self, server: EagerParamServer) -> None:
        self.server = server
        self.wire = TORCH_DTYPES[server.capabilities.wire]

    @property
    @abstractmethod
    def resident_bytes(self) -> int:
        """Device bytes that the link holds for good: its weight slots."""

    @abstractmethod
    def prepare(self, plans: Sequence[LayerPlan]) -> None:
        """Allocate slots for the largest of ``plans`` and take the parameters' own storage away."""

    @abstractmethod
    def prefetch(self, plan: LayerPlan) -> None:
        """Start to bring the layer's weights; a no-op where that is under way or done already."""

    @abstractmethod
    def acquire(self, plan: LayerPlan) -> None:
        """Make the layer's parameters usable on the device; starts the fetch where no prefetch did."""

    @abstractmethod
    def release(self, plan: LayerPlan) -> None:
        """The layer's weights are not needed any more."""

    @abstractmethod
    def abort(self) -> None:
        """Give back everything that is held or on its way, after a failure."""

    @abstractmethod
    def mark(self) -> Any:
        """A point in the device's work, for `to_host` to wait for."""

    def outbound(self) -> AbstractContextManager[Any]:
        """Device work in this block waits for what `to_host` has waited for, and not for the engine's later work."""
        return nullcontext()

    @abstractmethod
    def to_host(self, buffer: torch.Tensor, mark: Any) -> HostGradient:
        """Bring a flat gradient buffer to host memory; returns when it is there."""

    @abstractmethod
    def offload(self, tensor: torch.Tensor) -> Any:
        """Copy an activation to host memory; returns a handle for `load`."""

    @abstractmethod
    def load(self, handle: Any) -> torch.Tensor:
        """The offloaded activation on the device again."""

    @abstractmethod
    def forget(self, handle: Any) -> None:
        """An offloaded activation is not needed again."""

    def close(self) -> None:  # noqa: B027 - a link without threads has nothing to stop
        """Stop threads and free what is held."""


class LeasedLink(Link):
    """For a CPU with an fp32 wire: parameters are views of the store, leased while a layer uses them."""

    def __init__(self, server: EagerParamServer) -> None:
        super().__init__(server)
        self.device = torch.device("cpu")
        self._coming: dict[int, list[tuple[EpsLayer, Ticket[Lease]]]] = {}
        self._held: dict[int, list[Lease]] = {}
        self._bound: dict[str, int] = {}

    @property
    def resident_bytes(self) -> int:
        return 0

    def prepare(self, plans: Sequence[LayerPlan]) -> None:
        for plan in plans:
            self.acquire(plan)
            self.release(plan)

    def prefetch(self, plan: LayerPlan) -> None:
        if plan.index not in self._coming and plan.index not in self._held:
            self._coming[plan.index] = [(e, self.server.lease(e.name)) for e in plan.eps]

    def acquire(self, plan: LayerPlan) -> None:
        self.prefetch(plan)
        held = self._held.setdefault(plan.index, [])
        for eps, ticket in self._coming.pop(plan.index, []):
            lease = ticket.result()
            held.append(lease)
            # A store that moves, as one may after a reload, is bound again.
            address = lease.array.ctypes.data
            if self._bound.get(eps.name) != address:
                bind(eps, from_numpy(lease.array))
                self._bound[eps.name] = address

    def release(self, plan: LayerPlan) -> None:
        for lease in self._held.pop(plan.index, []):
            lease.release()

    def abort(self) -> None:
        for coming in self._coming.values():
            for _, ticket in coming:
                with suppress(RelayEpsError):
                    ticket.result().release()
        for held in self._held.values():
            for lease in held:
                lease.release()
        self._coming.clear()
        self._held.clear()

    def mark(self) -> None:
        return None

    def to_host(self, buffer: torch.Tensor, mark: Any) -> HostGradient:
        return HostGradient(to_numpy(buffer), True, lambda: None)

    def offload(self, tensor: torch.Tensor) -> torch.Tensor:
        with on_host():
            return tensor.detach().clone()

    def load(self, handle: torch.Tensor) -> torch.Tensor:
        return handle.clone()

    def forget(self, handle: torch.Tensor) -> None:
        pass


def tensor_views(layout: LayerLayout, flat: torch.Tensor) -> list[torch.Tensor]:
    """The layout's tensors as views of a flat section."""
    return [flat[slot.start : slot.stop].view(slot.spec.shape) for slot in layout.slots]


def bind(eps: EpsLayer, flat: torch.Tensor) -> None:
    """Make the layer's parameters views of ``flat``."""
    for parameter, view in zip(eps.parameters, tensor_views(eps.layout, flat), strict=True):
        parameter.data = view


def unbind(eps: EpsLayer, device: torch.device, dtype: torch.dtype) -> None:
    """Take the parameters' storage away: they keep their shape and read as NaN."""
    nothing = _nothing(device, dtype)
    for parameter in eps.parameters:
        parameter.data = nothing.expand(parameter.shape)


@lru_cache
def _nothing(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((), float("nan"), device=device, dtype=dtype)


def from_numpy(array: NDArray[Any]) -> torch.Tensor:
    """A torch view of a carrier array (uint16 as bfloat16), of a read-only one too."""
    with warnings.catch_warnings():
        # A leased array is read-only to keep callers honest; the relay only reads through this view while leased.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if array.dtype == np.uint16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """A carrier view of a CPU tensor (bfloat16 as uint16)."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()
