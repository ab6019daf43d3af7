"""Each (step, layer, micro-batch) draws numbers of its own, and the caller's stream is left alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from relay_eps.relay import Relay, seed_generators
from relay_eps.relay.randomness import global_stream_kept, key

CPU = torch.device("cpu")
COUNTERS = st.integers(0, 2**31)


def test_h23_every_place_in_a_run_has_a_key_of_its_own() -> None:
    keys = [key(*place) for place in itertools.product(range(6), range(6), range(6), range(6))]
    assert len(set(keys)) == len(keys)


@given(st.integers(-(2**63), 2**64), COUNTERS, COUNTERS, COUNTERS)
def test_a_key_is_a_seed_that_torch_takes_and_always_the_same(seed: int, step: int, layer: int, micro: int) -> None:
    value = key(seed, step, layer, micro)
    assert 0 <= value < 2**63
    assert value == key(seed, step, layer, micro)
    assert value != key(seed, step, layer, micro + 1)
    assert value != key(seed + 1, step, layer, micro)


def test_a_later_seed_is_not_an_earlier_one_moved_by_a_step() -> None:
    assert key(1, 0, 0, 0) != key(0, 1, 0, 0)


def test_seeding_decides_what_is_drawn() -> None:
    drawn = []
    for micro in (0, 1, 0):
        seed_generators(3, 1, 2, micro, CPU)
        drawn.append(torch.rand(8))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def test_h23_the_global_stream_is_kept_through_an_error() -> None:
    before = torch.get_rng_state()

    @global_stream_kept(CPU)
    def interrupted() -> None:
        torch.rand(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(torch.get_rng_state(), before)


class Watcher(nn.Module):
    """Remembers the masks that it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.masks.append(torch.rand(x.shape[1:]))
        return x * self.masks[-1]


def test_h23_m9_a_recompute_draws_what_the_first_forward_drew() -> None:
    watcher = Watcher()
    with Relay(nn.Sequential(nn.Linear(4, 4), watcher, nn.Linear(4, 4)), micro_batch=2, seed=5) as relay:
        for _ in range(2):
            relay.step(torch.ones(6, 4), torch.zeros(6, 4), nn.functional.mse_loss)
    first, second = watcher.masks[:6], watcher.masks[6:]
    for masks in (first, second):
        assert all(torch.equal(a, b) for a, b in zip(masks[:3], masks[3:], strict=True))
    distinct = [*first[:3], *second[:3]]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(distinct, 2))


def test_the_seed_can_be_changed_between_steps() -> None:
    watcher = Watcher()
    with Relay(nn.Sequential(nn.Linear(4, 4), watcher, nn.Linear(4, 4)), seed=5) as relay:
        relay.use_seed(6)
        assert relay.seed == 6
        relay.step(torch.ones(2, 4), torch.zeros(2, 4), nn.functional.mse_loss)
    seed_generators(6, 0, 1, 0, CPU)
    assert torch.equal(watcher.masks[0], torch.rand(4))
