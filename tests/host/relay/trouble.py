"""Layers in which something happens at a chosen moment of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.host.relay.models import CLASSES, Case, case, vectors

Act = Callable[[torch.Tensor], torch.Tensor]


class Trouble(nn.Module):
    """Passes its input on; once, at the armed moment, ``act`` decides what happens instead.

    A moment is a pass, "first" or "recompute", and the number of the micro-batch in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._armed: tuple[bool, int, Act] | None = None
        self._seen = {False: 0, True: 0}

    def arm(self, when: str, micro: int, act: Act) -> None:
        self._armed = (when == "recompute", micro, act)
        self._seen = {False: 0, True: 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        recompute = torch.is_grad_enabled()
        micro = self._seen[recompute]
        self._seen[recompute] += 1
        if self._armed is not None and self._armed[:2] == (recompute, micro):
            act, self._armed = self._armed[2], None
            return act(x)
        return x


def raising(error: BaseException) -> Act:
    """The layer raises ``error``."""

    def act(x: torch.Tensor) -> torch.Tensor:
        raise error

    return act


def gradient_times(factor: float) -> Act:
    """The layer's value is right, the gradient that flows through it is multiplied with ``factor``."""

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * factor

    def act(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Multiply.apply(x)
        return out

    return act


class Chain(nn.Sequential):
    """Six layers with weights, buffers that change, dropout; trouble in layer "1" and in the head."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(7, 9),
            nn.Sequential(Trouble(), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 8)),
            nn.Linear(8, 8),
            nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 8)),
            nn.Linear(8, 8),
            nn.Sequential(nn.BatchNorm1d(8), Trouble(), nn.Linear(8, CLASSES)),
        )

    @property
    def low(self) -> Trouble:
        found = self.get_submodule("1.0")
        assert isinstance(found, Trouble)
        return found

    @property
    def head(self) -> Trouble:
        found = self.get_submodule("5.1")
        assert isinstance(found, Trouble)
        return found


CHAIN: Case = case("chain", Chain, vectors)
