"""Forward and backward in layer-major order: every micro-batch through one layer before the next layer (L2L).

Forward runs without a graph and stashes each layer's input; backward recomputes a micro-batch's graph and takes the
gradients of weights and inputs (arXiv 2002.05645). Plain gradient accumulation adds the same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from relay_eps.errors import NonFiniteLoss, RelayError
from relay_eps.relay.batch import MicroBatch
from relay_eps.relay.buffers import LayerBuffers
from relay_eps.relay.commit import Collector
from relay_eps.relay.graph import check_declared
from relay_eps.relay.layers import LayerPlan
from relay_eps.relay.leaves import (
    as_inputs,
    flatten,
    leaves_of,
    own_memory,
    required,
    unflatten,
    versions,
    wants_gradient,
)
from relay_eps.relay.link import Link
from relay_eps.relay.randomness import seed_generators
from relay_eps.relay.stash import Stash

LossFunction = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True)
class Machine:
    """What the passes run on."""

    plans: tuple[LayerPlan, ...]
    link: Link
    buffers: tuple[LayerBuffers, ...]
    stash_on_host: bool
    seed: int

    def place(self, tree: Any) -> Any:
        """A micro-batch's values on the device, floating tensors in the compute dtype of a 16-bit wire."""
        device, wire = self.link.device, self.link.wire

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            dtype = wire if wire is not torch.float32 and leaf.is_floating_point() else leaf.dtype
            return leaf.to(device=device, dtype=dtype, non_blocking=True)

        return pytree.tree_map(move, tree)


def visits(machine: Machine, order: Sequence[LayerPlan], then: LayerPlan | None = None) -> Iterator[LayerPlan]:
    """Layers in ``order``, each with its weights on the device while it is current and the next one's on their way.

    ``then`` is fetched ahead while the last one is current. After a failure in the loop's body the engine's abort gives
    back what was held.
    """
    coming = [*order[1:], then]
    for plan, following in zip(order, coming, strict=False):
        machine.link.acquire(plan)
        if following is not None and following is not plan:
            machine.link.prefetch(following)
        yield plan
        machine.link.release(plan)


def forward_only(machine: Machine, micros: Sequence[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
    """The model's output for each micro-batch; one fetch a layer, nothing stashed but what is carried."""
    stash = Stash(machine.link, on_host=machine.stash_on_host)
    carried = {}
    sides: dict[int, dict[str, Any]] = {m.index: machine.place(m.side) for m in micros}
    for m in micros:
        leaves, carried[m.index] = flatten(machine.place(m.inputs))
        stash.put(m.index, leaves)
    with torch.no_grad():
        for plan in visits(machine, machine.plans):
            for m in micros:
                tree = unflatten(stash.pop(m.index), carried[m.index])
                out, made = plan.run(tree, sides[m.index])
                for name, value in made.items():
                    leaves, spec = flatten(value)
                    sides[m.index][name] = unflatten(own_memory(plan, leaves), spec)
                leaves, carried[m.index] = flatten(out)
                stash.put(m.index, own_memory(plan, leaves))
    for m in micros:
        yield m, unflatten(stash.pop(m.index), carried[m.index])


class TrainingPass:
    """One step's forward and backward over its micro-batches."""

    def __init__(
        self, machine: Machine, micros: Sequence[MicroBatch], loss_fn: LossFunction, *, step: int, loss_scale: float
    ) -> None:
        self._machine = machine
        self._plans = machine.plans
        self._micros = tuple(micros)
        self._loss_fn = loss_fn
        self._step = step
        self._loss_scale = loss_scale
        self._stash = Stash(machine.link, on_host=machine.stash_on_host)
        self._specs: dict[Any, Any] = {}
        self._wanted: dict[Any, list[bool]] = {}
        self._makers = {name: plan.index for plan in self._plans for name in plan.layer.provides}
        self.losses: list[torch.Tensor] = []
        for m in self._micros:
            self._take_batch(m)
        self._source = self._lowest_backward()

    def close(self) -> None:
        """Forget what was stashed."""
        self._stash.clear()

    # --- what the batch brings

    def _take_batch(self, m: MicroBatch) -> None:
        self._keep_given(("in", 0, m.index), m.inputs)
        for name, value in m.side.items():
            if name in self._makers:
                raise RelayError(f"the side input {name!r} is made by layer {self._plans[self._makers[name]].name!r}")
            self._keep_given(("side", name, m.index), value)

    def _lowest_backward(self) -> int:
        """The lowest layer that needs a backward: it has trainable weights, or an input with a gradient."""
        index = min(plan.index for plan in self._plans if plan.trained)
        for plan in self._plans[:index]:
            named = [("side", name, m.index) for name in plan.layer.side for m in self._micros]
            if any(any(self._wanted.get(key, ())) for key in named):
                index = plan.index
                break
        if any(any(self._wanted["in", 0, m.index]) for m in self._micros):
            index = 0
        return index

    def _keep_given(self, key: Any, tree: Any) -> None:
        self._wanted[key] = required(tree)
        leaves, self._specs[key] = flatten(self._machine.place(tree))
        self._stash.put(key, leaves)

    def _keep_made(self, key: Any, tree: Any, maker: LayerPlan) -> None:
        leaves, self._specs[key] = flatten(tree)
        self._stash.put(key, own_memory(maker, leaves))

    # --- forward

    def forward(self, *, with_last: bool) -> None:
        """Stash every layer's inputs. ``with_last`` runs the last layer too, and its loss, without a graph."""
        order = self._plans if with_last else self._plans[:-1]
        with torch.no_grad():
            for plan in visits(self._machine, order, then=self._plans[-1]):
                self._forward_layer(plan)
        if with_last:
            self.mean_loss()

    def _forward_layer(self, plan: LayerPlan) -> None:
        buffers = self._machine.buffers[plan.index]
        buffers.start()
        for m in self._micros:
            key = ("in", plan.index, m.index)
            leaves = self._stash.get(key)
            side = {n: self._tree(("side", n, m.index)) for n in self._side_names(plan, m)}
            # An offloaded input is a copy for this run only; one that no recompute needs may change.
            precious = leaves if not self._machine.stash_on_host and plan.index >= self._source else []
            before = versions(precious), _side_versions(side)
            buffers.before_forward(m.index)
            self._seed(plan, m)
            out, made = plan.run(unflatten(leaves, self._specs[key]), side)
            buffers.after_forward(m.index, self._step)
            if (versions(precious), _side_versions(side)) != before:
                raise _changed_in_place(plan)
            if plan is self._plans[-1]:
                self._keep_loss(self._loss(plan, out, m))
            else:
                self._keep_made(("in", plan.index + 1, m.index), out, plan)
            for name, value in made.items():
                self._keep_made(("side", name, m.index), value, plan)
            if plan.index < self._source:
                self._stash.drop(key)
        buffers.end_forwards()

    def _side_names(self, plan: LayerPlan, m: MicroBatch) -> list[str]:
        return [name for name in plan.layer.side if self._stash.has(("side", name, m.index))]

    def _tree(self, key: Any) -> Any:
        return unflatten(self._stash.get(key), self._specs[key])

    def _seed(self, plan: LayerPlan, m: MicroBatch) -> None:
        seed_generators(self._machine.seed, self._step, plan.index, m.index, self._machine.link.device)

    def _loss(self, plan: LayerPlan, out: Any, m: MicroBatch) -> torch.Tensor:
        loss: Any = self._loss_fn(out, self._machine.place(m.targets))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise RelayError(f"the loss function must return the micro-batch's mean loss as one number, not {what}")
        return loss.reshape(())

    def _keep_loss(self, loss: torch.Tensor) -> None:
        # A copy: the number that a torch loss returns can sit in the memory of all the samples' losses.
        self.losses.append(loss.detach().clone())

    def mean_loss(self) -> float:
        """The weighted mean loss; raises NonFiniteLoss naming the micro-batch."""
        values = torch.stack(self.losses).double().tolist()
        for m, value in zip(self._micros, values, strict=True):
            if not abs(value) < float("inf"):
                raise NonFiniteLoss(
                    f"the loss of micro-batch {m.index} in step {self._step} is {value}: no weight was changed; "
                    "look at that micro-batch's data, or lower the learning rate"
                )
        return sum(m.weight * value for m, value in zip(self._micros, values, strict=True))

    # --- backward

    def backward(self, collector: Collector, *, last_ran: bool, check_graph: bool) -> None:
        """From the last layer down: recompute, take gradients, hand them to ``collector``.

        ``last_ran`` says that `forward` ran the last layer too; otherwise its one forward happens here, with a graph,
        and the losses are checked before anything is handed over. ``check_graph`` looks for undeclared parameters.
        """
        order = self._plans[: self._source - 1 if self._source else None : -1]
        for plan in visits(self._machine, order):
            fresh = plan is self._plans[-1] and not last_ran
            buffers = self._machine.buffers[plan.index]
            if fresh:
                buffers.start()
            collector.start(plan)
            for m in self._micros:
                self._backward_micro(plan, m, collector, fresh=fresh, check_graph=check_graph)
            if fresh:
                buffers.end_forwards()
                self.mean_loss()
            else:
                buffers.end_recomputes()
            collector.end(plan)

    def _backward_micro(
        self, plan: LayerPlan, m: MicroBatch, collector: Collector, *, fresh: bool, check_graph: bool
    ) -> None:
        buffers = self._machine.buffers[plan.index]
        key = ("in", plan.index, m.index)
        leaves = as_inputs(self._stash.pop(key), self._wants(plan.index, key))
        with torch.enable_grad():
            side, side_leaves, roots, upstream = self._open_side(plan, m)
        before = _side_versions(side)
        if fresh:
            buffers.before_forward(m.index)
        else:
            buffers.before_recompute(m.index)
        self._seed(plan, m)
        with torch.enable_grad(), _inputs_unchanged(plan):
            out, made = plan.run(unflatten(leaves, self._specs[key]), side)
            if plan is self._plans[-1]:
                loss = self._loss(plan, out, m)
        if fresh:
            buffers.after_forward(m.index, self._step)
            if _side_versions(side) != before:
                raise _changed_in_place(plan)
            self._keep_loss(loss)
        if plan is self._plans[-1]:
            if not loss.requires_grad:
                raise RelayError(
                    f"the loss of micro-batch {m.index} does not depend on any weight: was it detached, or worked out "
                    "under no_grad?"
                )
            above: list[tuple[Any, Any]] = [(loss, torch.full_like(loss, m.weight * self._loss_scale))]
        else:
            above = list(zip(leaves_of(out), self._stash.pop(("grad", plan.index + 1, m.index)), strict=True))
        for name, value in made.items():
            above += self._made_gradients(name, value, m)
        above = [(o, g) for o, g in above if g is not None and isinstance(o, torch.Tensor) and o.requires_grad]
        roots = [o for o, _ in above] + roots
        upstream = [g for _, g in above] + upstream
        if check_graph:
            check_declared(plan, roots)
        self._take_gradients(plan, m, collector, leaves, side_leaves, roots, upstream)

    def _take_gradients(
        self,
        plan: LayerPlan,
        m: MicroBatch,
        collector: Collector,
        leaves: list[Any],
        side_leaves: dict[str, list[Any]],
        roots: list[torch.Tensor],
        upstream: list[torch.Tensor],
    ) -> None:
        flat_side = [leaf for values in side_leaves.values() for leaf in values]
        wanted = [*plan.trained, *(t for t in (*leaves, *flat_side) if wants_gradient(t))]
        taken: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if roots:
            taken = torch.autograd.grad(roots, wanted, upstream, allow_unused=True)
        found = iter(taken)
        weights = [next(found) for _ in plan.trained]
        boundary = [next(found) if wants_gradient(t) else None for t in leaves]
        if plan.index > self._source or any(wants_gradient(t) for t in leaves):
            self._stash.put(("grad", plan.index, m.index), boundary)
        for name, values in side_leaves.items():
            self._stash.put(("side-grad", name, m.index), [next(found) if wants_gradient(t) else None for t in values])
        collector.add(plan, m.index, weights)

    def _wants(self, layer: int, key: Any) -> list[bool] | bool:
        return self._wanted[key] if layer == 0 else layer > self._source

    def _open_side(
        self, plan: LayerPlan, m: MicroBatch
    ) -> tuple[dict[str, Any], dict[str, list[Any]], list[torch.Tensor], list[torch.Tensor]]:
        """The layer's side inputs as views of leaves, the leaves, and the gradients so far as extra roots.

        Entering the gradient so far as a root on the view keeps autograd's order: what the layers above contributed
        comes first, then this layer's uses one by one.
        """
        side, opened, roots, upstream = {}, {}, [], []
        for name in self._side_names(plan, m):
            key = ("side", name, m.index)
            made_at = self._makers.get(name)
            wants = self._wanted[key] if made_at is None else made_at >= self._source
            leaves = as_inputs(self._stash.get(key), wants)
            views = [leaf.view_as(leaf) if wants_gradient(leaf) else leaf for leaf in leaves]
            so_far = self._stash.pop(("side-grad", *key[1:])) if self._stash.has(("side-grad", *key[1:])) else ()
            for view, gradient in zip(views, so_far, strict=False):
                if gradient is not None:
                    roots.append(view)
                    upstream.append(gradient)
            side[name] = unflatten(views, self._specs[key])
            opened[name] = leaves
        return side, opened, roots, upstream

    def _made_gradients(self, name: str, value: Any, m: MicroBatch) -> list[tuple[Any, Any]]:
        key = ("side-grad", name, m.index)
        gradients = self._stash.pop(key) if self._stash.has(key) else [None] * len(leaves_of(value))
        return list(zip(leaves_of(value), gradients, strict=True))

    # --- gradients of what the caller gave

    def gradients_of_inputs(self) -> tuple[Any, dict[str, Any] | None]:
        """Gradients of the inputs and of the given side inputs, for each micro-batch's number, as trees of leaves.

        None where no leaf has ``requires_grad``.
        """
        inputs = self._returned(("in", 0), ("grad", 0))
        names = {key[1] for key in self._wanted if key[0] == "side"}
        sides = {name: self._returned(("side", name), ("side-grad", name)) for name in names}
        return inputs, {name: value for name, value in sides.items() if value is not None} or None

    def _returned(self, value: tuple[Any, Any], gradient: tuple[Any, Any]) -> dict[int, Any] | None:
        values = {m.index: (*value, m.index) for m in self._micros}
        if not any(any(self._wanted[key]) for key in values.values()):
            return None
        gradients = {index: (*gradient, index) for index in values}
        return {
            index: unflatten(self._unscaled(self._stash.get(key)), self._specs[values[index]])
            for index, key in gradients.items()
            if self._stash.has(key)
        }

    def _unscaled(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        return [None if g is None else g / self._loss_scale for g in gradients]


def _side_versions(side: dict[str, Any]) -> list[int]:
    return versions(leaf for value in side.values() for leaf in leaves_of(value))


def _changed_in_place(plan: LayerPlan) -> RelayError:
    return RelayError(
        f"layer {plan.name!r} changed an input in place, which is needed again: use the out-of-place form "
        "(inplace=False), or make it one layer with the one below"
    )


@contextmanager
def _inputs_unchanged(plan: LayerPlan) -> Iterator[None]:
    """torch refuses an in-place change of a leaf; say it in the relay's terms."""
    try:
        yield
    except RuntimeError as error:
        if "leaf Variable" in str(error) and "in-place" in str(error):
            raise _changed_in_place(plan) from error
        raise
