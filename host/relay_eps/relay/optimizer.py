"""The face that the relay shows to schedulers and training loops: a real `torch.optim.Optimizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from relay_eps.eps.hyper import AdamHyper
from relay_eps.errors import RelayError


class RelayOptimizer(torch.optim.Optimizer):
    """AdamA's parameter groups; the update itself runs in the EPS during ``Relay.step``.

    ``step`` is called by the relay at the end of each step that was not skipped, so that a scheduler sees one optimizer
    step for each update. Calling it yourself raises RelayError; ``zero_grad`` has nothing to do.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        v_scale: float = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "v_scale": v_scale}
        self._in_relay_step = False
        self._complete = False
        super().__init__(params, defaults)
        self._complete = True
        self.hyper()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group while the optimizer is made; raises RelayError later, when the server's layers are made."""
        if self._complete:
            raise RelayError("the parameter groups are fixed once the relay is made: give them all as params=[...]")
        super().add_param_group(param_group)

    def hyper(self) -> tuple[AdamHyper, ...]:
        """The groups' hyper-parameters as they are now; raises ContractError for values outside the contract."""
        return tuple(
            AdamHyper(
                lr=float(group["lr"]),
                beta1=float(group["betas"][0]),
                beta2=float(group["betas"][1]),
                eps=float(group["eps"]),
                weight_decay=float(group["weight_decay"]),
                v_scale=float(group["v_scale"]),
            )
            for group in self.param_groups
        )

    def groups(self) -> tuple[tuple[nn.Parameter, ...], ...]:
        """The parameters of each group."""
        return tuple(tuple(group["params"]) for group in self.param_groups)

    def count_step(self) -> None:
        """The relay has made an update: let schedulers and hooks know."""
        self._in_relay_step = True
        try:
            self.step()
        finally:
            self._in_relay_step = False

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Called by the relay; raises RelayError for anybody else, since the update has happened already."""
        if closure is not None or not self._in_relay_step:
            raise RelayError("Relay.step has updated the weights already: do not call optimizer.step() yourself")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing to do: the relay keeps no gradients."""
