"""The leaves of what layers pass to each other: tensors among None and plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from relay_eps.errors import RelayError
from relay_eps.relay.layers import LayerPlan

# A tensor by itself is what most layers pass on; torch's walk of a tree takes longer than a small kernel.
_ALONE: pytree.TreeSpec = pytree.tree_flatten(torch.empty(0))[1]


def flatten(tree: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of a tree, and its structure for `unflatten`."""
    return ([tree], _ALONE) if type(tree) is torch.Tensor else pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], spec: pytree.TreeSpec) -> Any:
    """The tree of structure ``spec`` with these leaves."""
    return leaves[0] if spec is _ALONE else pytree.tree_unflatten(leaves, spec)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a tree."""
    return [tree] if type(tree) is torch.Tensor else pytree.tree_leaves(tree)


def wants_gradient(leaf: Any) -> bool:
    """Whether ``leaf`` is a tensor that requires a gradient."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def required(tree: Any) -> list[bool]:
    """For each leaf, whether it requires a gradient."""
    return [wants_gradient(leaf) for leaf in leaves_of(tree)]


def as_inputs(values: Sequence[Any], wanted: Sequence[bool] | bool) -> list[Any]:
    """The values as autograd's leaves for a layer's recompute; floating tensors require a gradient where wanted."""
    flags = [wanted] * len(values) if isinstance(wanted, bool) else wanted
    return [
        value.detach().requires_grad_(flag and value.is_floating_point()) if isinstance(value, torch.Tensor) else value
        for value, flag in zip(values, flags, strict=True)
    ]


def versions(leaves: Iterable[Any]) -> list[int]:
    """How often each tensor was changed in place."""
    return [leaf._version for leaf in leaves if isinstance(leaf, torch.Tensor)]


def own_memory(plan: LayerPlan, leaves: Sequence[Any]) -> list[Any]:
    """What a layer made, with copies of whatever lies in its weights: their memory is another layer's soon.

    Raises RelayError for an object that hides tensors, through which no gradient would flow.
    """
    weights = {p.untyped_storage().data_ptr() for eps in plan.eps for p in eps.parameters}
    return [_own(plan, leaf, weights) for leaf in leaves]


def _own(plan: LayerPlan, leaf: Any, weights: set[int]) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone() if leaf.untyped_storage().data_ptr() in weights else leaf
    if any(isinstance(value, torch.Tensor) for value in getattr(leaf, "__dict__", {}).values()):
        raise RelayError(
            f"layer {plan.name!r} passes tensors on inside a {type(leaf).__name__}, where the relay cannot follow "
            "their gradients: pass a tuple, list or dict, or register the type with torch.utils._pytree"
        )
    return leaf
