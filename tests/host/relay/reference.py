"""Plain PyTorch gradient accumulation, micro-batch by micro-batch, its gradients put through the golden rule.

This is what the relay is held against, with difference 0. The reference runs whole micro-batches through the whole
model with autograd's own accumulation; only the seeding before each layer is the relay's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import _pytree as pytree

from relay_eps.eps import golden
from relay_eps.eps.hyper import AdamHyper
from relay_eps.relay import RelayLayer, Whole, seed_generators
from tests.host.relay.models import Batch, layers_of

CPU = torch.device("cpu")
Gradients = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Expected:
    """What a step must come to. ``gradients`` has one for each fold: one a step, or in AdamA one a micro-batch."""

    loss: float
    gradients: dict[str, list[NDArray[np.float32]]]
    norm: float | None = None


@dataclass
class Moments:
    """The golden state of one tensor."""

    m: NDArray[np.float32]
    v: NDArray[np.float32]
    t: int = 0


def cut(tree: Any, start: int, stop: int) -> Any:
    """The samples ``start`` to ``stop`` of every tensor that is not marked whole."""

    def part(leaf: Any) -> Any:
        if isinstance(leaf, Whole):
            return leaf.value
        return leaf[start:stop] if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(part, tree)


def run_layers(
    layers: Sequence[RelayLayer], inputs: Any, side: dict[str, Any], before: Callable[[int], None] = lambda layer: None
) -> Any:
    """The layers one after the other, as a plain forward would; ``before`` is told each layer's number."""
    carried, side = inputs, dict(side)
    for index, layer in enumerate(layers):
        before(index)
        kwargs = {name: side[name] for name in layer.side}
        if layer.unpack and isinstance(carried, dict):
            carried = layer.call(**carried, **kwargs)
        elif layer.unpack:
            carried = layer.call(*carried, **kwargs)
        else:
            carried = layer.call(carried, **kwargs)
        if layer.provides:
            carried, made = carried
            side.update(made)
    return carried


@dataclass
class Reference:
    """A plain training loop over a model of its own.

    ``hyper`` gives each tensor's hyper-parameters by name; ``zero`` names the tensors that get a zero gradient where
    autograd leaves None. ``ties`` lists, upper layer's first, the copies of a tensor that the relay's model shares: the
    model here has a tensor for each layer, and their gradients are summed in the relay's order.
    """

    model: nn.Module
    hyper: Callable[[str], AdamHyper]
    loss: Callable[[Any, Any], torch.Tensor]
    micro_batch: int | None = None
    seed: int = 0
    mode: str = "exact"
    max_grad_norm: float | None = None
    zero: frozenset[str] = frozenset()
    ties: Sequence[str] = ()
    count: Callable[[Any], int] | None = None
    device: torch.device = CPU
    steps: int = 0
    moments: dict[str, Moments] = field(default_factory=dict)

    def step(self, batch: Batch) -> Expected:
        """Train on a mini-batch."""
        loss, gradients = self.gradients(batch)
        norm, scale = None, 1.0
        if self.max_grad_norm is not None:
            norm, scale = clip([torch.from_numpy(g[0]) for g in gradients.values()], self.max_grad_norm)
        folds = max(map(len, gradients.values()))
        for name in self.zero:
            gradients[name] = [np.zeros(self._parameter(name).shape, np.float32)] * folds
        with torch.no_grad():
            for name, parts in gradients.items():
                self._update(name, parts, scale)
        self.steps += 1
        return Expected(loss, gradients, norm)

    def gradients(self, batch: Batch) -> tuple[float, dict[str, list[NDArray[np.float32]]]]:
        """The mean loss, and each tensor's gradients."""
        layers = layers_of(self.model)
        separate = self.mode == "adama" or bool(self.ties)
        parts: list[Gradients] = []
        loss = 0.0
        self._clear()
        for index, (start, stop), weight in self._micros(batch):
            whole = (batch.inputs, batch.side or {}, batch.targets)
            part, side, targets = (self._place(cut(tree, start, stop)) for tree in whole)
            out = run_layers(layers, part, side, lambda layer, i=index: self._seed(layer, i))  # type: ignore[misc]
            value = self.loss(out, targets)
            value.backward(torch.full_like(value, weight))
            loss += weight * value.item()
            if separate:
                parts.append(self._collected())
                self._clear()
        parts = parts if separate else [self._collected()]
        return loss, self._merged(parts)

    def _micros(self, batch: Batch) -> list[tuple[int, tuple[int, int], float]]:
        n = next(leaf.shape[0] for leaf in pytree.tree_leaves(batch.inputs) if isinstance(leaf, torch.Tensor))
        size = self.micro_batch or n
        spans = [(start, min(start + size, n)) for start in range(0, n, size)]
        counts = [
            stop - start if self.count is None else self.count(batch.targets[start:stop]) for start, stop in spans
        ]
        total = sum(counts)
        weighted = zip(spans, counts, strict=True)
        return [(i, span, float(np.float32(c / total))) for i, (span, c) in enumerate(weighted) if c]

    def _place(self, tree: Any) -> Any:
        return pytree.tree_map(lambda leaf: leaf.to(self.device) if isinstance(leaf, torch.Tensor) else leaf, tree)

    def _seed(self, layer: int, micro: int) -> None:
        seed_generators(self.seed, self.steps, layer, micro, self.device)

    def _parameter(self, name: str) -> torch.Tensor:
        return self.model.get_parameter(name)

    def _clear(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None

    def _collected(self) -> Gradients:
        return {n: p.grad.cpu().numpy().copy() for n, p in self.model.named_parameters() if p.grad is not None}

    def _merged(self, parts: Sequence[Gradients]) -> dict[str, list[NDArray[np.float32]]]:
        names = dict.fromkeys(name for part in parts for name in part)
        if self.mode == "adama":
            merged = {name: [part[name] for part in parts if name in part] for name in names}
            if self.ties:
                shared = [summed([part[name] for name in self.ties]) for part in parts]
        else:
            merged = {name: [summed([part[name] for part in parts if name in part])] for name in names}
            if self.ties:
                shared = [summed([part[name] for name in self.ties for part in parts])]
        for name in self.ties:
            merged.pop(name, None)
        if self.ties:
            merged[self.ties[-1]] = shared
        # In the model's order: the norm of norms depends on it in the last bit.
        return {name: merged[name] for name, _ in self.model.named_parameters() if name in merged}

    def _update(self, name: str, parts: Sequence[NDArray[np.float32]], scale: float) -> None:
        hyper, parameter = self.hyper(name), self._parameter(name)
        zeros = np.zeros(parameter.shape, np.float32)
        state = self.moments.setdefault(name, Moments(zeros, zeros))
        for i, gradient in enumerate(parts):
            state.m, state.v = golden.fold(state.m, state.v, gradient, hyper.fold_scalars(), scale=scale, first=i == 0)
        state.t += 1
        updated = golden.apply(parameter.detach().cpu().numpy(), state.m, state.v, hyper.apply_scalars(state.t))
        for copy in self.ties if name in self.ties else (name,):
            self._parameter(copy).copy_(torch.from_numpy(updated))


def summed(gradients: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The first, and the later ones added to it one after the other."""
    total = gradients[0].copy()
    for gradient in gradients[1:]:
        total += gradient
    return total


def clip(gradients: Sequence[torch.Tensor], max_norm: float) -> tuple[float, float]:
    """torch's own norm of ``gradients``, and the coefficient that ``clip_grad_norm_`` multiplies them with."""
    norm = nn.utils.get_total_norm(list(gradients))
    probe = nn.Parameter(torch.ones(()))
    probe.grad = torch.ones(())
    nn.utils.clip_grads_with_norm_([probe], max_norm, norm)
    return float(norm), float(probe.grad)
