"""Module buffers that a forward changes: running statistics, spectral-norm vectors, counters.

The relay runs a layer's forward twice. For each recompute the buffers are put back to what they were before that
micro-batch's first forward, and afterwards to their final values; if the step fails, to what they were before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from relay_eps.errors import RelayError
from relay_eps.relay.layers import LayerPlan


@dataclass(frozen=True)
class _Place:
    """Where a buffer hangs; modules may put a new tensor there, so the place is kept and not the tensor."""

    module: nn.Module
    name: str

    def tensor(self) -> torch.Tensor | None:
        return self.module._buffers.get(self.name)


class LayerBuffers:
    """The buffers of one relay layer.

    Which of them a training forward changes is learnt in the first step, and again whenever a module of the layer was
    switched between training and evaluation. Comparing values is the only sure way: batch norm's kernel moves its
    statistics without marking the tensors as changed. Where one buffer of a module changes, all of that module's are
    watched: a running mean can stay what it was by chance, while inputs are zero.

    ``owners`` is shared by all layers: a buffer can change in one of them only.
    """

    def __init__(self, plan: LayerPlan, owners: dict[_Place, LayerBuffers]) -> None:
        self._layer = plan.name
        self._owners = owners
        modules = {id(m): m for root in plan.modules for m in root.modules()}
        self._modules = tuple(modules.values())
        self._places = tuple(_Place(m, name) for m in self._modules for name in m._buffers)
        self._modes: tuple[bool, ...] = ()
        self._learnt_for: tuple[bool, ...] | None = None
        self._learning = True
        self._changing: set[_Place] = set()
        self._before: dict[int, dict[_Place, torch.Tensor]] = {}
        self._versions: dict[_Place, tuple[int, int]] = {}
        self._initial: dict[_Place, torch.Tensor] = {}
        self._final: dict[_Place, torch.Tensor] = {}

    def move_to(self, device: torch.device) -> None:
        """Put every buffer on ``device``, where the layer computes."""
        for place in self._places:
            tensor = place.tensor()
            if tensor is not None and tensor.device != device:
                place.module._buffers[place.name] = tensor.to(device)

    def start(self) -> None:
        """A step's first forward of this layer is about to run."""
        self._modes = tuple(m.training for m in self._modules)
        self._learning = self._learnt_for != self._modes
        if self._learning:
            # Learnt once every micro-batch has been through: a step that fails before has seen too little.
            self._learnt_for = None
            self._changing = set()

    def before_forward(self, micro: int) -> None:
        """Remember the values that micro-batch ``micro``'s first forward starts from."""
        watched = self._places if self._learning else self._changing
        self._before[micro] = {p: t.detach().clone() for p in watched if (t := p.tensor()) is not None}
        self._versions = {place: self._stamp(place) for place in self._places}

    def after_forward(self, micro: int, step: int) -> None:
        """Note what the forward changed; raises RelayError for a buffer that had been constant until now, and for one
        that another layer changes too.
        """
        before = self._before[micro]
        if self._learning:
            modules = {place.module for place, value in before.items() if not _same(value, place.tensor())}
            self._changing |= {place for place in before if place.module in modules}
            self._claim(self._changing)
            # What did not change is dropped at once: the copies of a large constant mask live for one forward only.
            self._before[micro] = {p: t for p, t in before.items() if p in self._changing}
            return
        late = {p for p in self._places if p not in self._changing and self._stamp(p) != self._versions[p]}
        if late:
            self._learnt_for = None
            raise RelayError(
                f"layer {self._layer!r} changed its buffer {', '.join(sorted(p.name for p in late))} for the first "
                f"time in step {step}, micro-batch {micro}; no weight was updated, but the buffer keeps that change: "
                "run the step again, the buffer is watched from now on"
            )

    def end_forwards(self) -> None:
        """The layer's first forwards are done: what the buffers hold now is final."""
        self._learnt_for = self._modes
        later: dict[_Place, torch.Tensor] = {}
        for micro in sorted(self._before, reverse=True):
            # A copy dropped while learning equals the next micro-batch's: nothing had changed in between.
            later = {**later, **self._before[micro]}
            self._before[micro] = dict(later)
        self._initial = dict(later)
        self._final = {p: t.detach().clone() for p in self._changing if (t := p.tensor()) is not None}

    def before_recompute(self, micro: int) -> None:
        """Put the buffers back to what micro-batch ``micro``'s first forward started from."""
        self._put(self._before.pop(micro, {}))

    def end_recomputes(self) -> None:
        """After the last recompute: the final values of the first forwards."""
        self._put(self._final)
        self._final = {}

    def commit(self) -> None:
        """The step counts: drop the copies."""
        self._before, self._initial, self._final = {}, {}, {}

    def restore(self) -> None:
        """The step does not count: back to the values from before it."""
        first: dict[_Place, torch.Tensor] = {}
        for micro in sorted(self._before, reverse=True):
            first.update(self._before[micro])
        self._put({**first, **self._initial})
        self.commit()

    def _claim(self, places: set[_Place]) -> None:
        for place in places:
            owner = self._owners.setdefault(place, self)
            if owner is not self:
                raise RelayError(
                    f"layers {owner._layer!r} and {self._layer!r} share a module whose buffer {place.name} changes in "
                    "the forward: the relay visits them in another order than plain training does, so it cannot give "
                    "the same values; make them one layer, or put that module in eval mode"
                )

    def _put(self, values: dict[_Place, torch.Tensor]) -> None:
        if not values:
            return
        with torch.no_grad():
            for place, value in values.items():
                tensor = place.tensor()
                if tensor is not None and tensor.shape == value.shape:
                    tensor.copy_(value)
                else:
                    place.module._buffers[place.name] = value.clone()

    @staticmethod
    def _stamp(place: _Place) -> tuple[int, int]:
        tensor = place.tensor()
        return (id(tensor), tensor._version if tensor is not None else 0)


def _same(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and torch.equal(a, b)
