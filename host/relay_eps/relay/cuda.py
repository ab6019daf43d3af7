"""The link to a CUDA device: one stream brings weights, one takes gradients away, one activations, one computes.

Events order them; nothing waits for a parameter by itself. Weights are copied from the server's own pinned memory where
it leases it, gradients land in two pinned arrays of exactly the size of the largest layer's.

Device memory is allocated on the computing stream. What another stream reads is kept until the computing stream has
been told to wait for that read: then the memory that a step needs does not depend on how far the host runs ahead.
"""

from __future__ import annotations

import queue
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from relay_eps.eps.contract import EagerParamServer
from relay_eps.relay.layers import LayerPlan
from relay_eps.relay.link import HostGradient, from_numpy, to_numpy
from relay_eps.relay.pinned import pinned_empty
from relay_eps.relay.slots import Slot, SlotLink


@dataclass(frozen=True)
class _OffDevice:
    """An activation in host memory, there once ``event`` has happened."""

    host: torch.Tensor
    memory: NDArray[np.uint8]
    event: torch.cuda.Event


class _Pieces:
    """Pinned memory for offloaded activations: taken in the first step, used again in later ones."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        #: Free pieces, smallest first, each with the event after which it may be written again.
        self._free: list[tuple[NDArray[np.uint8], torch.cuda.Event]] = []

    def take(self, nbytes: int) -> tuple[NDArray[np.uint8], torch.cuda.Event | None]:
        """The smallest free piece that is large enough; a new one takes the place of a smaller one."""
        # A tensor without elements still takes a byte, so that there is memory to lock.
        size = max(nbytes, 1)
        at = bisect_left(self._free, size, key=_size)
        if at < len(self._free):
            return self._free.pop(at)
        if self._free:
            # Batches of ever new sizes must not pile up pieces of ever new sizes.
            _, event = self._free.pop()
            event.synchronize()
        return pinned_empty(size, self._device), None

    def give(self, memory: NDArray[np.uint8], event: torch.cuda.Event) -> None:
        """Put a piece back; it is written again only after ``event``."""
        insort(self._free, (memory, event), key=_size)

    def clear(self) -> None:
        """Let go of every free piece; nothing may be under way."""
        self._free.clear()


def _size(piece: tuple[NDArray[np.uint8], torch.cuda.Event]) -> int:
    return piece[0].nbytes


class CudaLink(SlotLink):
    """Slots on a CUDA device, filled by a stream of their own."""

    STAGING = 2

    def __init__(self, server: EagerParamServer, device: torch.device) -> None:
        super().__init__(server)
        self.device = device
        self._fetching = torch.cuda.Stream(device)
        self._pushing = torch.cuda.Stream(device)
        # Apart from gradients, which would else queue up behind activations that are still to be computed.
        self._offloading = torch.cuda.Stream(device)
        self._staging: queue.SimpleQueue[NDArray[np.uint8]] = queue.SimpleQueue()
        self._inbound: NDArray[np.uint8] | None = None
        self._pieces = _Pieces(device)
        self._leaving: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def prepare(self, plans: Sequence[LayerPlan]) -> None:
        super().prepare(plans)
        for slot in self._slots:
            # The first fetch must not overtake the allocation, whose zeros the computing stream writes.
            self._vacate(slot)
        largest = max(max(sum(e.layout.size for e in p.own), *(e.layout.size for e in p.tied), 0) for p in plans)
        for _ in range(self.STAGING):
            self._staging.put(pinned_empty(largest * 4, self.device))
        if not self.server.capabilities.leases:
            most = max(e.layout.size for p in plans for e in p.eps)
            self._inbound = pinned_empty(most * self.server.capabilities.wire.carrier.itemsize, self.device)

    def abort(self) -> None:
        super().abort()
        self._let_go()

    # --- weights

    def _allocate(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=self.wire, device=self.device)

    def _fill(self, plan: LayerPlan, slot: Slot) -> None:
        """Copy the weights in the fetch thread; it, not the engine, waits for the copy before the lease goes back."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._fetching):
            # The slot's last user must have finished with it.
            self._fetching.wait_event(slot.event)
            for i, eps in enumerate(plan.eps):
                self._copy_in(eps.name, slot.part(plan, i))
            slot.event = self._fetching.record_event()

    def _copy_in(self, layer: str, target: torch.Tensor) -> None:
        if self._inbound is None:
            with self.server.lease(layer).result() as lease:
                target.copy_(from_numpy(lease.array), non_blocking=True)
                self._fetching.synchronize()
            return
        carrier = self.server.capabilities.wire.carrier
        host = self._inbound[: target.numel() * carrier.itemsize].view(carrier)
        self.server.fetch(layer, host).result()
        target.copy_(from_numpy(host), non_blocking=True)
        self._fetching.synchronize()

    def _arrived(self, slot: Slot) -> None:
        torch.cuda.current_stream(self.device).wait_event(slot.event)

    def _vacate(self, slot: Slot) -> None:
        slot.event = torch.cuda.current_stream(self.device).record_event()

    # --- gradients

    def mark(self) -> torch.cuda.Event:
        return torch.cuda.current_stream(self.device).record_event()

    @contextmanager
    def outbound(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self._pushing):
            yield

    def to_host(self, buffer: torch.Tensor, mark: Any) -> HostGradient:
        memory = self._staging.get()
        try:
            host = from_numpy(memory[: buffer.nbytes].view(_carrier(buffer.dtype)))
            with self.outbound():
                self._pushing.wait_event(mark)
                host.copy_(buffer, non_blocking=True)
                self._pushing.synchronize()
        except BaseException:
            self._staging.put(memory)
            raise
        return HostGradient(to_numpy(host), False, lambda: self._staging.put(memory))

    # --- activations

    def offload(self, tensor: torch.Tensor) -> _OffDevice:
        source = _dense(tensor.detach())
        computing = torch.cuda.current_stream(self.device)
        memory, free = self._pieces.take(source.nbytes)
        host = torch.from_numpy(memory[: source.nbytes]).view(source.dtype).as_strided(source.shape, source.stride())
        with torch.cuda.stream(self._offloading):
            self._offloading.wait_stream(computing)
            if free is not None:
                self._offloading.wait_event(free)
            host.copy_(source, non_blocking=True)
            event = self._offloading.record_event()
        # One copy may be under way while the next activation is computed.
        self._let_go()
        self._leaving = (source, event)
        return _OffDevice(host, memory, event)

    def load(self, handle: _OffDevice) -> torch.Tensor:
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(handle.event)
        return handle.host.to(self.device, non_blocking=True)

    def forget(self, handle: _OffDevice) -> None:
        """The activation is not needed again: its piece may be used once the copies given so far are done."""
        self._pieces.give(handle.memory, torch.cuda.current_stream(self.device).record_event())

    def _let_go(self) -> None:
        """Free the activation that is being offloaded: later work that gets its memory waits for the copy."""
        if self._leaving is not None:
            torch.cuda.current_stream(self.device).wait_event(self._leaving[1])
            self._leaving = None

    def close(self) -> None:
        self._fetcher.shutdown(wait=True)
        torch.cuda.synchronize(self.device)
        self._leaving = None
        self._pieces.clear()
        super().close()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy, with strides that leave no gaps; an order of dimensions such as channels-last is kept."""
    kept = torch.empty_like(tensor, device="meta").stride()
    return tensor if tensor.stride() == kept else tensor.clone()


def _carrier(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype({torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.uint16}[dtype])
