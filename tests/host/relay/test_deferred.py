"""Between backward and update: the norm is torch's, and a gradient that is not finite changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from relay_eps.errors import NonFiniteGradient
from relay_eps.relay import LossScale, Relay
from relay_eps.relay.commit import ExactCollector
from relay_eps.relay.deferred import Deferral
from tests.host.relay.following import make_relay, take_step
from tests.host.relay.models import MLP


class Collected:
    """A collector whose gradients have these norms."""

    def __init__(self, order: list[nn.Parameter], norms: list[float], *, finite: bool = True) -> None:
        self.norms = {id(p): torch.tensor(n) for p, n in zip(order, norms, strict=True)}
        self._finite = finite

    def total_norm(self, order: Any) -> torch.Tensor:
        return ExactCollector.total_norm(self, order)  # type: ignore[arg-type]

    def check_finite(self) -> None:
        if not self._finite:
            raise NonFiniteGradient("not finite")

    def finite(self) -> bool:
        return self._finite


def decide(
    max_norm: float | None, scale: LossScale | None, norms: list[float], *, finite: bool = True
) -> tuple[float | None, float | None]:
    order = [nn.Parameter(torch.zeros(1)) for _ in norms]
    collected: Any = Collected(order, norms, finite=finite)
    return Deferral(max_norm, scale, order).decide(collected)


def test_without_clipping_or_scaling_nothing_is_deferred() -> None:
    assert not Deferral(None, None, ()).active
    assert Deferral(1.0, None, ()).active
    assert Deferral(None, LossScale(), ()).active


@given(st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=6), st.floats(1e-3, 1e3), st.integers(0, 12))
def test_h14_h16_coefficient_and_norm_are_clip_grad_norms(norms: list[float], max_norm: float, power: int) -> None:
    """For gradients that are scaled by a power of two as for those that are not."""
    parameters = [nn.Parameter(torch.zeros(1)) for _ in norms]
    for p, n in zip(parameters, norms, strict=True):
        p.grad = torch.tensor([n])
    expected = nn.utils.clip_grad_norm_(parameters, max_norm)
    scaled = [n * 2.0**power for n in norms]
    scale = LossScale(2.0**power) if power else None
    norm, factor = decide(max_norm, scale, scaled)
    assert norm == float(expected)
    assert factor is not None
    for p, n in zip(parameters, scaled, strict=True):
        assert p.grad is not None
        if abs(float(p.grad)) > 1e-30:
            assert np.float32(n) * np.float32(factor) == float(p.grad)


def test_a_batch_without_any_gradient_has_no_norm() -> None:
    assert decide(1.0, None, []) == (None, 1.0)


def test_h19_an_overflow_halves_the_scale_and_gives_no_factor() -> None:
    scale = LossScale(8.0)
    assert decide(None, scale, [1.0], finite=False) == (None, None)
    assert (scale.scale, scale.skipped) == (4.0, 1)


def test_h19_at_the_smallest_scale_it_is_an_error() -> None:
    scale = LossScale(8.0, smallest=8.0)
    with pytest.raises(NonFiniteGradient):
        decide(None, scale, [1.0], finite=False)
    assert scale.skipped == 0
    with pytest.raises(NonFiniteGradient):
        decide(1.0, None, [1.0], finite=False)


class Many(nn.Module):
    """One layer of many tensors, of which two get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(5, generator=g)) for _ in range(23))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        used = [p for i, p in enumerate(self.parts) if i not in (2, 9)]
        out: torch.Tensor = torch.stack([x @ p for p in used], 1).tanh()
        return out


def test_h16_tensors_without_a_gradient_do_not_move_the_norms_last_bit() -> None:
    plain = Many()
    with Relay(nn.Sequential(Many()), max_grad_norm=1e9) as relay:
        for seed in range(20):
            g = torch.Generator().manual_seed(seed)
            x, y = torch.randn(4, 5, generator=g), torch.randn(4, 21, generator=g)
            plain.load_state_dict({name[2:]: value for name, value in relay.state_dict().items()})
            plain.zero_grad()
            nn.functional.mse_loss(plain(x), y).backward()
            expected = nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
            assert relay.step(x, y, nn.functional.mse_loss).grad_norm == float(expected)


def test_deferred_commit_keeps_a_sum_in_the_server_and_says_so_in_bytes() -> None:
    with make_relay(MLP, max_grad_norm=1.0) as relay:
        before = relay.server.stored_bytes()
        take_step(relay, MLP, 0, 8)
        after = relay.server.stored_bytes()
        take_step(relay, MLP, 1, 8)
        assert relay.server.stored_bytes() == after
    assert before * 4 == after * 3, "12 bytes a parameter become 16"
