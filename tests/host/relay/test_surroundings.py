"""A step leaves random streams and autocast as it found them."""

from __future__ import annotations

import pytest
import torch

from relay_eps.errors import RelayError
from relay_eps.relay.surroundings import step_surroundings, without_autocast_cache
from tests.host.relay.following import make_relay, take_step
from tests.host.relay.models import MLP

CPU = torch.device("cpu")


@pytest.mark.parametrize("cached", [False, True])
def test_autocasts_cache_is_off_inside_and_as_it_was_afterwards(cached: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
        with without_autocast_cache():
            assert not torch.is_autocast_cache_enabled()
        assert torch.is_autocast_cache_enabled() is cached


def test_copies_that_autocast_kept_before_are_not_used() -> None:
    weight, x = torch.nn.Parameter(torch.ones(2, 2)), torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        torch.mm(x, weight)
        weight.data = torch.zeros(2, 2)
        with without_autocast_cache():
            assert torch.mm(x, weight).eq(0).all()


def test_all_is_put_back_after_an_error() -> None:
    before = torch.get_rng_state()

    @step_surroundings(CPU)
    def failing() -> None:
        torch.rand(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_autocast_cache_enabled()


def test_a_step_inside_inference_mode_is_refused_in_one_sentence() -> None:
    with make_relay(MLP) as relay:
        with torch.inference_mode(), pytest.raises(RelayError, match=r"cannot run inside torch\.inference_mode"):
            take_step(relay, MLP, 0, 4)
        assert take_step(relay, MLP, 0, 4).step == 0
        with torch.inference_mode():
            batch = MLP.batch(0, 4)
            relay.evaluate(batch.inputs, batch.targets, MLP.loss)
