"""What is decided between the backward and the update: is the gradient finite, and what is it multiplied with?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from relay_eps.relay.commit import ExactCollector
from relay_eps.relay.scaling import LossScale

log = logging.getLogger("relay_eps")


@dataclass(frozen=True)
class Deferral:
    """Clipping and loss scaling; with either, updates wait for the end of the backward."""

    max_grad_norm: float | None
    loss_scale: LossScale | None
    #: The model's parameters in its own order.
    order: Sequence[nn.Parameter]

    @property
    def active(self) -> bool:
        """Whether updates wait."""
        return self.max_grad_norm is not None or self.loss_scale is not None

    @property
    def scale(self) -> float:
        """What the loss is multiplied with."""
        return 1.0 if self.loss_scale is None else self.loss_scale.scale

    def decide(self, collector: ExactCollector) -> tuple[float | None, float | None]:
        """The gradient's norm (None without clipping), and the factor to fold with; no factor where it overflowed.

        Raises NonFiniteGradient where no smaller loss scale could help.
        """
        used = self.scale
        if self.loss_scale is None or used == self.loss_scale.smallest:
            collector.check_finite()
        finite = collector.finite()
        if self.loss_scale is not None:
            self.loss_scale.update(finite=finite)
        if not finite:
            assert self.loss_scale is not None
            if self.loss_scale.skipped_in_a_row == 1:
                log.warning("gradients overflowed at loss scale %g: the step is skipped", used)
            return None, None
        if self.max_grad_norm is None or not collector.norms:
            return None, 1.0 / used
        norm = collector.total_norm(self.order) / used
        # torch.nn.utils.clip_grad_norm_'s coefficient, operation by operation.
        coefficient = torch.clamp(self.max_grad_norm / (norm + 1e-6), max=1.0)
        return float(norm), float(coefficient) / used
