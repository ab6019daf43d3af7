"""Gradient buffers on the device, and the summing of a layer's gradient over its micro-batches."""

from __future__ import annotations

import queue
from collections.abc import Sequence

import torch

from relay_eps.errors import RelayError
from relay_eps.relay.layers import EpsLayer
from relay_eps.relay.link import tensor_views


class GradientBuffer:
    """A flat piece of device memory that a relay layer's gradients are packed into, laid out as its EPS layers are."""

    def __init__(self, elements: int, device: torch.device) -> None:
        # Not zeroed: `views` clears what no gradient fills, and on a CPU pages are taken when they are first used.
        self._memory = torch.empty(elements, dtype=torch.float32, device=device)
        self._views: dict[tuple[object, ...], list[torch.Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """Device bytes."""
        return self._memory.nbytes

    def flat(self, parts: Sequence[EpsLayer], dtype: torch.dtype) -> torch.Tensor:
        """The memory that ``parts`` take, one behind the other, as one flat tensor of ``dtype``."""
        return self._memory.view(dtype)[: sum(e.layout.size for e in parts)]

    def views(self, parts: Sequence[EpsLayer], dtype: torch.dtype) -> list[torch.Tensor]:
        """One view for each parameter of ``parts``; the padding between them is zero."""
        shape = (dtype, *(tuple(t.shape for t in e.layout.tensors) for e in parts))
        flat = self.flat(parts, dtype)
        if shape not in self._views:
            self._views[shape] = [v for e, part in split(parts, flat) for v in tensor_views(e.layout, part)]
        for e, part in split(parts, flat):
            for start, stop in e.layout.gaps():
                part[start:stop].zero_()
        return self._views[shape]


def split(parts: Sequence[EpsLayer], flat: torch.Tensor) -> list[tuple[EpsLayer, torch.Tensor]]:
    """``flat`` cut into the flat sections of ``parts``."""
    cut, start = [], 0
    for eps in parts:
        cut.append((eps, flat[start : start + eps.layout.size]))
        start += eps.layout.size
    return cut


class BufferPool:
    """A fixed number of gradient buffers: `take` waits until one is free."""

    def __init__(self, count: int, elements: int, device: torch.device) -> None:
        self._all = [GradientBuffer(elements, device) for _ in range(count)]
        self._free: queue.SimpleQueue[GradientBuffer]
        self.reclaim()

    @property
    def nbytes(self) -> int:
        """Device bytes of all buffers."""
        return sum(b.nbytes for b in self._all)

    def take(self) -> GradientBuffer:
        """A free buffer; waits for one."""
        return self._free.get()

    def reclaim(self) -> None:
        """Every buffer is free again, after a failed step whose parcels have all ended."""
        self._free = queue.SimpleQueue()
        for buffer in self._all:
            self._free.put(buffer)

    def give(self, buffer: GradientBuffer) -> None:
        """Put a buffer back; any thread may."""
        self._free.put(buffer)


class GradientSum:
    """The sum of gradients over micro-batches, in a buffer: the first is copied, later ones are added."""

    def __init__(self, buffer: GradientBuffer, parts: Sequence[EpsLayer], dtype: torch.dtype) -> None:
        self.buffer = buffer
        self.parts = tuple(parts)
        self.dtype = dtype
        self.flat = buffer.flat(parts, dtype)
        self.views = buffer.views(parts, dtype)
        #: For each view, whether it got a gradient.
        self.filled = [False] * len(self.views)
        #: After each gradient that was added: its micro-batch, and the sum's largest magnitude, which is not finite
        #: once a gradient or the sum itself is not.
        self.largest: list[tuple[int, torch.Tensor]] = []

    @property
    def empty(self) -> bool:
        """Whether no tensor got any gradient."""
        return not any(self.filled)

    def add(self, micro: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """Add a micro-batch's gradients, one for each parameter of the parts, or None where it got none."""
        given = [(i, g) for i, g in enumerate(gradients) if g is not None]
        if not given:
            return
        if any(g.layout is not torch.strided for _, g in given):
            names = [s.name for e in self.parts for s in e.layout.tensors]
            sparse = next(names[i] for i, g in given if g.layout is not torch.strided)
            raise RelayError(f"the gradient of {sparse} is sparse, which the server cannot take: use sparse=False")
        first = [(self.views[i], g) for i, g in given if not self.filled[i]]
        later = [(self.views[i], g) for i, g in given if self.filled[i]]
        for i, _ in given:
            self.filled[i] = True
        if first:
            torch._foreach_copy_([v for v, _ in first], [g for _, g in first])
        if later:
            torch._foreach_add_([v for v, _ in later], [g for _, g in later])
        # Between the tensors the memory is zero; in one that has got nothing yet it is not.
        full = all(self.filled)
        self.largest.append((micro, _largest([self.flat] if full else [self.views[i] for i, _ in given])))

    def finish(self) -> list[str]:
        """Zero the tensors that got no gradient while others did; returns their names."""
        missing, names, index = [], [], 0
        for eps in self.parts:
            filled = self.filled[index : index + len(eps.parameters)]
            for offset, (spec, full) in enumerate(zip(eps.layout.tensors, filled, strict=True)):
                if not full:
                    missing.append(self.views[index + offset])
                    names.append(spec.name)
            index += len(eps.parameters)
        for view in missing:
            view.zero_()
        return names

    def got_gradient(self) -> list[bool]:
        """For each part, whether any of its tensors got a gradient."""
        got, index = [], 0
        for eps in self.parts:
            got.append(any(self.filled[index : index + len(eps.parameters)]))
            index += len(eps.parameters)
        return got


def _largest(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest magnitude as a 0-d tensor on the device: finite exactly if every element is."""
    # torch's infinity norm goes element by element on a CPU: ten times the time of a minimum and a maximum.
    ends = [end for t in tensors if t.numel() for end in torch.aminmax(t)]
    return torch.stack(ends).abs().amax() if ends else torch.zeros((), device=tensors[0].device)
