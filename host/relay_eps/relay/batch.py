"""A mini-batch cut into micro-batches, each with its weight in the mean loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from relay_eps.errors import RelayError

#: How the samples that count are counted: None for samples, an int for the label that is ignored, or a function of a
#: micro-batch's targets.
Count = int | Callable[[Any], int] | None


class Whole:
    """Marks a side input or an input that every micro-batch gets whole, such as a mask shared by all samples."""

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: its number in the mini-batch, its part of every input, and its weight in the mean loss."""

    index: int
    inputs: Any
    targets: Any
    side: dict[str, Any] = field(default_factory=dict)
    #: fp32(n_i / n), as a float: the upstream gradient of this micro-batch's mean loss.
    weight: float = 1.0


def samples(inputs: Any) -> int:
    """Samples in a mini-batch: the first dimension of the first tensor that is split. Raises RelayError for none."""
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor):
            if leaf.dim() == 0:
                raise RelayError("an input tensor has no dimensions: wrap what all samples share in Whole(...)")
            return leaf.shape[0]
    raise RelayError("the inputs hold no tensor to split into micro-batches")


def split(
    inputs: Any, targets: Any, side: dict[str, Any] | None, micro_batch: int | None, count: Count = None
) -> tuple[list[MicroBatch], int]:
    """The micro-batches that count, in order, and the number of samples.

    A micro-batch in which nothing counts (n_i = 0) is left out, since NaN times 0 is NaN. ``micro_batch`` is the number
    of samples in one, the last may be shorter; None takes the whole mini-batch as one. Raises RelayError for tensors
    whose first dimension is not the batch's.
    """
    total = samples(inputs)
    if total == 0:
        raise RelayError("the mini-batch is empty: its first tensor has 0 samples")
    size = total if micro_batch is None else micro_batch
    parts = []
    for index, start in enumerate(range(0, total, size)):
        span = (start, min(start + size, total), total)
        parts.append(
            MicroBatch(
                index,
                _cut(inputs, span, "input"),
                _cut(targets, span, "target"),
                {name: _cut(value, span, f"side input {name!r}") for name, value in (side or {}).items()},
            )
        )
    sizes = [min(start + size, total) - start for start in range(0, total, size)]
    counts = [_count(part, n, count) for part, n in zip(parts, sizes, strict=True)]
    whole = sum(counts)
    weighted = [
        MicroBatch(part.index, part.inputs, part.targets, part.side, fp32(n / whole))
        for part, n in zip(parts, counts, strict=True)
        if n > 0
    ]
    return weighted, total


def joined(outputs: Sequence[Any]) -> Any:
    """The micro-batches' outputs as one: tensors joined along their first dimension, of the rest the first one's."""
    flat = [pytree.tree_leaves(out) for out in outputs]
    leaves = [
        torch.cat(parts) if isinstance(parts[0], torch.Tensor) and parts[0].dim() else parts[0]
        for parts in zip(*flat, strict=True)
    ]
    return pytree.tree_unflatten(leaves, pytree.tree_structure(outputs[0]))


def fp32(value: float) -> float:
    """``value`` rounded to fp32."""
    return torch.tensor(value, dtype=torch.float32).item()


def _count(part: MicroBatch, size: int, count: Count) -> int:
    if count is None:
        return size
    if callable(count):
        n = int(count(part.targets))
        if n < 0:
            raise RelayError(f"the count function gave {n} for micro-batch {part.index}: it must not be negative")
        return n
    return sum(
        int((leaf != count).sum()) for leaf in pytree.tree_leaves(part.targets) if isinstance(leaf, torch.Tensor)
    )


def _cut(tree: Any, span: tuple[int, int, int], what: str) -> Any:
    start, stop, total = span

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, Whole):
            return leaf.value
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.dim() == 0 or leaf.shape[0] != total:
            raise RelayError(
                f"a tensor of shape {tuple(leaf.shape)} in {what} does not have the batch's {total} samples as its "
                "first dimension: wrap what all samples share in Whole(...)"
            )
        # A mini-batch of one micro-batch is passed on as it is, so that a caller's leaf stays that leaf.
        return leaf if stop - start == total else leaf[start:stop]

    return pytree.tree_map(cut, tree)
