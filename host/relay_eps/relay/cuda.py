"""The link to a CUDA device: one stream brings weights, one takes gradients and activations away, one computes.

Events order them; nothing waits for a parameter by itself. Weights are copied from the server's own pinned memory where
it leases it, gradients land in two pinned arrays of exactly the size of the largest layer's.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
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


class CudaLink(SlotLink):
    """Slots on a CUDA device, filled by a stream of their own."""

    STAGING = 2

    def __init__(self, server: EagerParamServer, device: torch.device) -> None:
        super().__init__(server)
        self.device = device
        self._fetching = torch.cuda.Stream(device)
        self._pushing = torch.cuda.Stream(device)
        self._staging: queue.SimpleQueue[NDArray[np.uint8]] = queue.SimpleQueue()
        # Pinned pieces for offloaded activations, by size: allocated in the first step, used again in later ones.
        self._pieces: dict[int, list[tuple[NDArray[np.uint8], torch.cuda.Event]]] = {}

    def prepare(self, plans: Sequence[LayerPlan]) -> None:
        super().prepare(plans)
        largest = max(max(sum(e.layout.size for e in p.own), *(e.layout.size for e in p.tied), 0) for p in plans)
        for _ in range(self.STAGING):
            self._staging.put(pinned_empty(largest * 4))

    # --- weights

    def _allocate(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=self.wire, device=self.device)

    def _fill(self, plan: LayerPlan, slot: Slot) -> None:
        """Copy the weights in the fetch thread; it, not the engine, waits for the copy before the lease goes back."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._fetching):
            if slot.event is not None:
                # The slot's last user must have finished with it.
                self._fetching.wait_event(slot.event)
            for i, eps in enumerate(plan.eps):
                self._copy_in(eps.name, slot.part(plan, i))
            slot.event = self._fetching.record_event()

    def _copy_in(self, layer: str, target: torch.Tensor) -> None:
        if self.server.capabilities.leases:
            with self.server.lease(layer).result() as lease:
                target.copy_(from_numpy(lease.array), non_blocking=True)
                self._fetching.synchronize()
            return
        host = np.empty(target.numel(), dtype=self.server.capabilities.wire.carrier)
        self.server.fetch(layer, host).result()
        target.copy_(from_numpy(host))

    def _arrived(self, slot: Slot) -> None:
        torch.cuda.current_stream(self.device).wait_event(slot.event)

    def _vacate(self, slot: Slot) -> None:
        slot.event = torch.cuda.current_stream(self.device).record_event()

    # --- gradients

    def mark(self) -> torch.cuda.Event:
        return torch.cuda.current_stream(self.device).record_event()

    def to_host(self, buffer: torch.Tensor, mark: Any) -> HostGradient:
        memory = self._staging.get()
        host = from_numpy(memory[: buffer.nbytes].view(_carrier(buffer.dtype)))
        with torch.cuda.device(self.device), torch.cuda.stream(self._pushing):
            self._pushing.wait_event(mark)
            host.copy_(buffer, non_blocking=True)
            self._pushing.record_event().synchronize()
        return HostGradient(to_numpy(host), False, lambda: self._staging.put(memory))

    # --- activations

    def offload(self, tensor: torch.Tensor) -> _OffDevice:
        source = tensor.detach().contiguous()
        computing = torch.cuda.current_stream(self.device)
        memory, free = self._piece(source.nbytes)
        host = torch.from_numpy(memory[: source.nbytes]).view(source.dtype).view(source.shape)
        with torch.cuda.stream(self._pushing):
            self._pushing.wait_stream(computing)
            if free is not None:
                self._pushing.wait_event(free)
            host.copy_(source, non_blocking=True)
            source.record_stream(self._pushing)
            return _OffDevice(host, memory, self._pushing.record_event())

    def load(self, handle: _OffDevice) -> torch.Tensor:
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(handle.event)
        return handle.host.to(self.device, non_blocking=True)

    def forget(self, handle: _OffDevice) -> None:
        """The activation is not needed again: its piece may be used once the copies given so far are done."""
        event = torch.cuda.current_stream(self.device).record_event()
        self._pieces.setdefault(handle.memory.nbytes, []).append((handle.memory, event))

    def _piece(self, nbytes: int) -> tuple[NDArray[np.uint8], torch.cuda.Event | None]:
        # A tensor without elements still takes a byte, so that there is memory to lock.
        size = max(nbytes, 1)
        pieces = self._pieces.get(size)
        return pieces.pop() if pieces else (pinned_empty(size), None)

    def close(self) -> None:
        super().close()
        torch.cuda.synchronize(self.device)
        self._pieces.clear()


def _carrier(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype({torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.uint16}[dtype])
