"""A look through autograd's graph for parameters that a layer uses without saying so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from relay_eps.errors import RelayError
from relay_eps.relay.layers import LayerPlan


def check_declared(plan: LayerPlan, roots: Sequence[torch.Tensor]) -> None:
    """Raise RelayError if the layer's graph reaches a parameter that is not among the layer's own.

    Such a parameter would be read from where it happens to lie, and would get no gradient.
    """
    declared = {id(p) for eps in plan.eps for p in eps.parameters}
    for parameter in _parameters(roots):
        if id(parameter) not in declared:
            raise RelayError(
                f"layer {plan.name!r} uses a parameter of shape {tuple(parameter.shape)} that is not one of its own: "
                "name it in RelayLayer(..., parameters=[...]) or modules=[...]"
            )


def _parameters(roots: Sequence[torch.Tensor]) -> list[torch.nn.Parameter]:
    todo: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen, found = set(), []
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.nn.Parameter):
            found.append(variable)
        todo += [child for child, _ in node.next_functions if child is not None]
    return found
