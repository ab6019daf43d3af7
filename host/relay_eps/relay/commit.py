"""How gradients become updates: summed or micro-batch by micro-batch, at once or after the whole backward.

A collector takes each relay layer's gradients as the backward makes them. `ExactCollector` sums a layer's micro-batches
on the device and sends one gradient; `AdamACollector` sends every micro-batch's gradient at once. What is sent is
folded and applied behind the backward (eager commit), or summed in the EPS until norm and finiteness are known
(deferred commit, `settle`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from relay_eps.eps.contract import EagerParamServer, Ticket
from relay_eps.eps.hyper import AdamHyper
from relay_eps.errors import NonFiniteGradient
from relay_eps.relay.gradients import BufferPool, GradientBuffer, GradientSum
from relay_eps.relay.layers import EpsLayer, LayerPlan
from relay_eps.relay.link import Link
from relay_eps.relay.outbound import Outbound, Parcel, refuse_non_finite


@dataclass(frozen=True)
class Route:
    """What every collector works with."""

    server: EagerParamServer
    link: Link
    outbound: Outbound
    pool: BufferPool
    #: Device buffers of tied EPS layers, by name; AdamA needs one for each micro-batch.
    tied: dict[str, list[GradientBuffer]]
    #: Told the names of tensors that got no gradient while their neighbours did.
    no_gradient: Callable[[list[str]], None]


class Collector(ABC):
    """Takes the gradients of one step."""

    def __init__(self, route: Route, hyper: Sequence[AdamHyper], micros: Sequence[int]) -> None:
        self._route = route
        self._hyper = tuple(hyper)
        self._micros = tuple(micros)
        self._tied: dict[tuple[str, int], GradientSum] = {}

    @abstractmethod
    def start(self, plan: LayerPlan) -> None:
        """The layer's backward begins."""

    @abstractmethod
    def add(self, plan: LayerPlan, micro: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """A micro-batch's gradients, one for each of ``plan.trained``."""

    @abstractmethod
    def end(self, plan: LayerPlan) -> None:
        """The layer's last micro-batch has been added."""

    def _hyper_of(self, eps: EpsLayer) -> AdamHyper:
        assert eps.group is not None
        return self._hyper[eps.group]

    def _tied_sum(self, eps: EpsLayer, which: int, dtype: torch.dtype) -> GradientSum:
        if (eps.name, which) not in self._tied:
            buffers = self._route.tied.setdefault(eps.name, [])
            while len(buffers) <= which:
                buffers.append(GradientBuffer(eps.layout.size, self._route.link.device))
            self._tied[eps.name, which] = GradientSum(buffers[which], (eps,), dtype)
        return self._tied[eps.name, which]

    def _names_missing(self, total: GradientSum) -> None:
        names = total.finish()
        got = total.got_gradient()
        neighbours = {s.name for e, g in zip(total.parts, got, strict=True) if g for s in e.layout.tensors}
        if told := [n for n in names if n in neighbours]:
            self._route.no_gradient(told)


class ExactCollector(Collector):
    """Sums on the device; one gradient a layer leaves it, and Adam's own result comes out."""

    def __init__(
        self, route: Route, hyper: Sequence[AdamHyper], micros: Sequence[int], *, deferred: bool = False
    ) -> None:
        super().__init__(route, hyper, micros)
        self._deferred = deferred
        # Sums are fp32; a single micro-batch's gradient crosses the link in the format it was computed in.
        self._dtype = torch.float32 if len(micros) > 1 else route.link.wire
        self._own: GradientSum | None = None
        #: Deferred commit: what arrived in the EPS, and what is known of it.
        self.waiting: list[EpsLayer] = []
        self.largest: list[tuple[str, Sequence[tuple[int, torch.Tensor]]]] = []
        self.norms: dict[int, torch.Tensor] = {}

    def start(self, plan: LayerPlan) -> None:
        self._own = GradientSum(self._route.pool.take(), plan.own, self._dtype) if plan.own else None

    def add(self, plan: LayerPlan, micro: int, gradients: Sequence[torch.Tensor | None]) -> None:
        at = 0
        if self._own is not None:
            at = len(self._own.views)
            self._own.add(micro, gradients[:at])
        for eps in plan.tied:
            stop = at + len(eps.parameters)
            self._tied_sum(eps, 0, torch.float32).add(micro, gradients[at:stop])
            at = stop

    def end(self, plan: LayerPlan) -> None:
        if self._own is not None:
            buffer = self._own.buffer
            self._send(plan.name, self._own, lambda: self._route.pool.give(buffer))
            self._own = None
        for eps in plan.tied:
            if plan.index == eps.users[0]:
                self._send(eps.name, self._tied.pop((eps.name, 0)), lambda: None)

    def _send(self, layer: str, total: GradientSum, free: Callable[[], None]) -> None:
        if total.empty:
            free()
            return
        self._names_missing(total)
        present = total.got_gradient()
        if self._deferred:
            self._take_norms(layer, total, present)
        self._route.outbound.submit(
            Parcel(
                layer,
                total.flat,
                total.parts,
                present,
                total.largest,
                self._accumulate if self._deferred else self._fold_apply,
                free,
                self._route.link.mark(),
                check=not self._deferred,
            )
        )

    def _fold_apply(self, eps: EpsLayer, gradient: NDArray[Any]) -> Ticket[None]:
        return self._route.server.fold_apply(eps.name, gradient, self._hyper_of(eps), first=True)

    def _accumulate(self, eps: EpsLayer, gradient: NDArray[Any]) -> Ticket[None]:
        return self._route.server.accumulate(eps.name, gradient, first=True)

    def _take_norms(self, layer: str, total: GradientSum, present: Sequence[bool]) -> None:
        self.largest.append((layer, list(total.largest)))
        at = 0
        for eps, got in zip(total.parts, present, strict=True):
            stop = at + len(eps.parameters)
            # As torch does, only the gradients that are there: zeros among them would move the others' last bits.
            parts = zip(eps.parameters, total.views[at:stop], total.filled[at:stop], strict=True)
            there = [(p, view) for p, view, filled in parts if filled]
            at = stop
            if got:
                self.waiting.append(eps)
                norms = torch._foreach_norm([view for _, view in there], 2.0)
                self.norms.update({id(p): n for (p, _), n in zip(there, norms, strict=True)})

    def check_finite(self) -> None:
        """Raise NonFiniteGradient for the first layer, from the top, whose gradient is not finite."""
        for layer, largest in self.largest:
            refuse_non_finite(layer, largest)

    def finite(self) -> bool:
        """Whether every gradient of the step is finite."""
        try:
            self.check_finite()
        except NonFiniteGradient:
            return False
        return True

    def total_norm(self, order: Sequence[torch.nn.Parameter]) -> torch.Tensor:
        """The global 2-norm of the summed gradients, worked out as ``torch.nn.utils.clip_grad_norm_`` does.

        ``order`` is the model's order of parameters: the norm of norms depends on it in the last bit.
        """
        return torch.linalg.vector_norm(torch.stack([self.norms[id(p)] for p in order if id(p) in self.norms]), 2.0)

    def settle(self, scale: float) -> None:
        """Deferred commit: fold and apply every waiting sum, times ``scale``."""
        tickets = [
            self._route.server.fold_apply(eps.name, None, self._hyper_of(eps), first=True, scale=scale)
            for eps in self.waiting
        ]
        for ticket in tickets:
            ticket.result()


class AdamACollector(Collector):
    """Sends every micro-batch's gradient at once; the first fold of a mini-batch carries the decay."""

    def __init__(self, route: Route, hyper: Sequence[AdamHyper], micros: Sequence[int]) -> None:
        super().__init__(route, hyper, micros)
        self._folded: set[str] = set()

    def start(self, plan: LayerPlan) -> None:
        pass

    def add(self, plan: LayerPlan, micro: int, gradients: Sequence[torch.Tensor | None]) -> None:
        own = plan.own
        at = sum(len(e.parameters) for e in own)
        if own:
            buffer = self._route.pool.take()
            total = GradientSum(buffer, own, self._route.link.wire)
            total.add(micro, gradients[:at])
            self._send(plan.name, total, micro, lambda: self._route.pool.give(buffer))
        for eps in plan.tied:
            stop = at + len(eps.parameters)
            which = self._micros.index(micro)
            total = self._tied_sum(eps, which, torch.float32)
            total.add(micro, gradients[at:stop])
            if plan.index == eps.users[0]:
                self._send(eps.name, self._tied.pop((eps.name, which)), micro, lambda: None)
            at = stop

    def end(self, plan: LayerPlan) -> None:
        pass

    def _send(self, layer: str, total: GradientSum, micro: int, free: Callable[[], None]) -> None:
        last = micro == self._micros[-1]
        self._names_missing(total)
        got = {e.name: g for e, g in zip(total.parts, total.got_gradient(), strict=True)}
        first = {e.name: e.name not in self._folded for e in total.parts}
        # A part without a gradient in the last micro-batch is applied all the same, if it was folded before.
        present = [got[e.name] or (last and not first[e.name]) for e in total.parts]
        self._folded.update(name for name, g in got.items() if g)
        if not any(present):
            free()
            return
        server = self._route.server

        def send(eps: EpsLayer, gradient: NDArray[Any]) -> Ticket[None]:
            hyper = self._hyper_of(eps)
            if not got[eps.name]:
                return server.apply(eps.name, hyper)
            if last:
                return server.fold_apply(eps.name, gradient, hyper, first=first[eps.name])
            return server.fold(eps.name, gradient, hyper, first=first[eps.name])

        self._route.outbound.submit(
            Parcel(layer, total.flat, total.parts, present, total.largest, send, free, self._route.link.mark())
        )
