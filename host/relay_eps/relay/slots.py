"""Links that copy weights into two device slots: the executing layer's and the next one's.

`SlotLink` holds what any such link needs. `ModelledLink` describes a link of a given speed between two parts of host
memory, so that streaming is tested on machines without a GPU: a fetch takes as long as it would on that link, and what
is freed is filled with NaN, so that a use after release shows in the numbers.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from relay_eps.eps.contract import EagerParamServer
from relay_eps.errors import ContractError
from relay_eps.relay.layers import LayerPlan
from relay_eps.relay.link import HostGradient, Link, tensor_views, to_numpy, unbind
from relay_eps.relay.memory import on_host


class Slot:
    """One flat piece of device memory for a layer's weights."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.plan: LayerPlan | None = None
        self.filled: Future[Any] | None = None
        #: Whatever a subclass needs to know about the slot's last use.
        self.event: Any = None
        self._views: dict[int, list[torch.Tensor]] = {}

    def part(self, plan: LayerPlan, index: int) -> torch.Tensor:
        """The flat section of the plan's EPS layer ``index``."""
        start = sum(e.layout.size for e in plan.eps[:index])
        return self.memory[start : start + plan.eps[index].layout.size]

    def bind(self, plan: LayerPlan) -> None:
        """Make the plan's parameters views of this slot."""
        if plan.index not in self._views:
            self._views[plan.index] = [
                view for i, eps in enumerate(plan.eps) for view in tensor_views(eps.layout, self.part(plan, i))
            ]
        parameters = (p for eps in plan.eps for p in eps.parameters)
        for parameter, view in zip(parameters, self._views[plan.index], strict=True):
            parameter.data = view


class SlotLink(Link):
    """Two slots, filled by a thread of its own ahead of use."""

    SLOTS = 2

    def __init__(self, server: EagerParamServer) -> None:
        super().__init__(server)
        self._slots: list[Slot] = []
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="relay-eps-fetch")

    @property
    def resident_bytes(self) -> int:
        return sum(slot.memory.nbytes for slot in self._slots)

    def prepare(self, plans: Sequence[LayerPlan]) -> None:
        self._plans = tuple(plans)
        largest = max(sum(e.layout.size for e in plan.eps) for plan in plans)
        self._slots = [Slot(self._allocate(largest)) for _ in range(self.SLOTS)]
        for plan in plans:
            self._take_away(plan)

    def prefetch(self, plan: LayerPlan) -> None:
        if self._slot_of(plan) is None:
            slot = next((s for s in self._slots if s.plan is None), None)
            if slot is None:
                held = ", ".join(s.plan.name for s in self._slots if s.plan is not None)
                raise AssertionError(f"no weight slot is free for {plan.name}: {held} hold them")
            slot.plan = plan
            slot.filled = self._fetcher.submit(self._fill, plan, slot)

    def acquire(self, plan: LayerPlan) -> None:
        self.prefetch(plan)
        slot = self._slot_of(plan)
        assert slot is not None
        assert slot.filled is not None
        slot.filled.result()
        self._arrived(slot)
        slot.bind(plan)

    def release(self, plan: LayerPlan) -> None:
        slot = self._slot_of(plan)
        if slot is not None:
            self._take_away(plan)
            self._vacate(slot)
            slot.plan = slot.filled = None

    def abort(self) -> None:
        for slot in self._slots:
            if slot.plan is not None:
                if slot.filled is not None:
                    slot.filled.exception()
                self.release(slot.plan)

    def close(self) -> None:
        self._fetcher.shutdown(wait=True)
        self._slots.clear()

    def _slot_of(self, plan: LayerPlan) -> Slot | None:
        return next((s for s in self._slots if s.plan is plan), None)

    def _take_away(self, plan: LayerPlan) -> None:
        for eps in plan.eps:
            unbind(eps, self.device, self.wire)

    @abstractmethod
    def _allocate(self, elements: int) -> torch.Tensor:
        """Device memory for a slot, in the wire format."""

    @abstractmethod
    def _fill(self, plan: LayerPlan, slot: Slot) -> None:
        """Bring the weights; runs in the fetch thread."""

    @abstractmethod
    def _arrived(self, slot: Slot) -> None:
        """Make the compute wait for the weights."""

    @abstractmethod
    def _vacate(self, slot: Slot) -> None:
        """The compute has been given its last work on this slot."""


@dataclass(frozen=True)
class ModelledLink:
    """A link to model: bytes a second in each direction, and random extra delays up to ``jitter`` seconds."""

    bytes_per_second: float = float("inf")
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0 or self.jitter < 0:
            raise ContractError("a modelled link needs a speed above 0 and a jitter of at least 0")


class MemoryLink(SlotLink):
    """Slots in host memory behind a modelled link."""

    def __init__(self, server: EagerParamServer, model: ModelledLink) -> None:
        super().__init__(server)
        self.device = torch.device("cpu")
        self._model = model
        # One stream of delays a direction: the threads must not share a generator.
        self._delays = {way: random.Random(f"{model.seed}/{way}") for way in ("in", "out")}

    def mark(self) -> None:
        return None

    def to_host(self, buffer: torch.Tensor, mark: Any) -> HostGradient:
        started = time.perf_counter()
        copy = buffer.clone()
        buffer.fill_(float("nan"))
        self._take_time(started, buffer.nbytes, "out")
        return HostGradient(to_numpy(copy), False, lambda: None)

    def offload(self, tensor: torch.Tensor) -> torch.Tensor:
        with on_host():
            return tensor.detach().clone()

    def load(self, handle: torch.Tensor) -> torch.Tensor:
        return handle.clone()

    def forget(self, handle: torch.Tensor) -> None:
        pass

    def _allocate(self, elements: int) -> torch.Tensor:
        return torch.full((elements,), float("nan"), dtype=self.wire)

    def _fill(self, plan: LayerPlan, slot: Slot) -> None:
        started = time.perf_counter()
        tickets = [self.server.fetch(eps.name, to_numpy(slot.part(plan, i))) for i, eps in enumerate(plan.eps)]
        for ticket in tickets:
            ticket.result()
        self._take_time(started, sum(slot.part(plan, i).nbytes for i in range(len(plan.eps))), "in")

    def _arrived(self, slot: Slot) -> None:
        pass

    def _vacate(self, slot: Slot) -> None:
        slot.memory.fill_(float("nan"))

    def _take_time(self, started: float, nbytes: int, way: str) -> None:
        wanted = nbytes / self._model.bytes_per_second + self._delays[way].uniform(0.0, self._model.jitter)
        left = started + wanted - time.perf_counter()
        if left > 0:
            time.sleep(left)
