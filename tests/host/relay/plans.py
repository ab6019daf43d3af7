"""Plans and EPS layers to test parts of the relay with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from relay_eps.eps import SoftwareEPS
from relay_eps.eps.contract import EagerParamServer
from relay_eps.relay.build import load_model
from relay_eps.relay.layers import LayerPlan, plan_layers
from relay_eps.relay.link import LeasedLink, Link
from relay_eps.relay.slots import MemoryLink, ModelledLink


def plans_of(model: nn.Module, layers: Any = None) -> tuple[LayerPlan, ...]:
    """The model's plan, with every trainable parameter in one group."""
    return plan_layers(model, layers, [[p for p in model.parameters() if p.requires_grad]])


class Linked:
    """A model whose weights are in a server, and the link to them."""

    def __init__(
        self,
        model: nn.Module,
        *,
        modelled: ModelledLink | None = None,
        server: EagerParamServer | None = None,
        make: Callable[[EagerParamServer], Link] | None = None,
    ) -> None:
        self.server = server if server is not None else SoftwareEPS(threads=1)
        if make is not None:
            self.link = make(self.server)
        else:
            self.link = LeasedLink(self.server) if modelled is None else MemoryLink(self.server, modelled)
        self.plans = plans_of(model)
        self.weights = [[p.detach().clone() for p in plan.trained] for plan in self.plans]
        load_model(self.server, self.link, self.plans)

    def holds(self, index: int) -> bool:
        """Whether the layer's parameters have their values now."""
        plan = self.plans[index]
        return all(torch.equal(p.detach(), w) for p, w in zip(plan.trained, self.weights[index], strict=True))

    def __enter__(self) -> Linked:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.abort()
        self.link.close()
        self.server.close()


def linears(*widths: int) -> nn.Sequential:
    """Linear layers of these widths."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
