"""The relay gives plain PyTorch's gradients and weights with difference 0, whatever it trains and however."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from relay_eps.relay import LossScale, ModelledLink
from tests.host.eps.test_golden import UNITS_FROM_TORCH
from tests.host.relay.following import (
    LR,
    compare_state,
    follow,
    make_reference,
    make_relay,
    take_step,
)
from tests.host.relay.models import BATCH_NORM, CASES, MLP, SIDES, TIED, WATCHED, Case, Tied, layers_of, untied
from tests.host.relay.reference import cut, run_layers
from tests.host.relay.servers import RecordingServer

#: One, two, three and uneven micro-batches, batches smaller than a micro-batch, and a last short batch.
SPLITS = {
    "whole": (None, (12,) * 5),
    "two": (6, (12,) * 5),
    "three": (4, (12,) * 5),
    "uneven": (5, (12,) * 5),
    "smaller than a micro-batch": (20, (12,) * 5),
    "last batch short": (5, (12, 12, 12, 12, 7)),
}

#: Where weights and layer inputs are while they wait.
PLACES: dict[str, dict[str, Any]] = {
    "stash on the host": {"stash": "host"},
    "slots": {"link": ModelledLink()},
    "slow link, stash on the host": {"link": ModelledLink(bytes_per_second=1e7), "stash": "host"},
    "delays, seed 0": {"link": ModelledLink(jitter=0.003, seed=0), "stash": "host"},
    "delays, seed 1": {"link": ModelledLink(1e8, jitter=0.003, seed=1)},
    "delays, seed 2": {"link": ModelledLink(jitter=0.003, seed=2), "stash": "host"},
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_h17_h18_gradients_and_weights_are_plain_pytorchs(case: Case, split: str) -> None:
    micro_batch, sizes = SPLITS[split]
    follow(case, micro_batch=micro_batch, sizes=sizes)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", [*CASES, TIED], ids=str)
def test_h39_h40_they_are_wherever_weights_and_stash_wait(case: Case, place: str) -> None:
    reference = make_reference(*untied(case), micro_batch=5) if case is TIED else None
    follow(case, reference=reference, micro_batch=5, sizes=(12,) * 3, **PLACES[place])


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_h22_batches_of_any_size_train(micro_batch: int) -> None:
    follow(MLP, micro_batch=micro_batch, sizes=(1, 2, 9, 3, 1))


@pytest.mark.parametrize("max_norm", [0.05, 1e6], ids=["biting", "not biting"])
@pytest.mark.parametrize("case", [*CASES, TIED], ids=str)
def test_h14_h15_h16_clipping_is_torchs_own(case: Case, max_norm: float) -> None:
    reference = make_reference(*untied(case), micro_batch=5, max_grad_norm=max_norm) if case is TIED else None
    for result in follow(case, micro_batch=5, max_grad_norm=max_norm, reference=reference):
        assert result.grad_norm is not None
        assert (result.grad_norm > max_norm) is (max_norm < 1)


@pytest.mark.parametrize("setting", ["one micro-batch", "leased", "slots"])
@pytest.mark.parametrize("case", [*CASES, TIED], ids=str)
def test_adama_folds_plain_pytorchs_gradient_of_each_micro_batch(case: Case, setting: str) -> None:
    micro_batch = None if setting == "one micro-batch" else 5
    place: dict[str, Any] = {"link": ModelledLink(jitter=0.002), "stash": "host"} if setting == "slots" else {}
    shared: dict[str, Any] = {"micro_batch": micro_batch, "mode": "adama"}
    reference = make_reference(*untied(case), **shared) if case is TIED else None
    follow(case, reference=reference, **shared, **place)


@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_scaling_changes_no_bit(case: Case, max_norm: float | None) -> None:
    scale = LossScale(2.0**8, growth_interval=2)
    plain = make_reference(case, micro_batch=5, max_grad_norm=max_norm)
    with make_relay(case, micro_batch=5, max_grad_norm=max_norm, loss_scale=scale) as relay:
        for step in range(5):
            result, expected = take_step(relay, case, step, 12), plain.step(case.batch(step, 12))
            assert (result.loss, result.grad_norm) == (expected.loss, expected.norm)
            compare_state(relay, plain)
    assert scale.scale == 2.0**10


# --- tied weights


@pytest.mark.parametrize("micro_batch", [None, 6, 5])
@pytest.mark.parametrize("deferred", [False, True], ids=["eager", "deferred"])
def test_m5_tied_weights_are_summed_in_the_relays_order(micro_batch: int | None, deferred: bool) -> None:
    shared: dict[str, Any] = {"micro_batch": micro_batch, "max_grad_norm": 0.05 if deferred else None}
    follow(TIED, reference=make_reference(*untied(TIED), **shared), **shared)


@pytest.mark.parametrize("micro_batch", [None, 5, 2])
def test_m5_tied_weights_are_near_autograds_sum(micro_batch: int | None) -> None:
    """A sum of k addends in another order is off by at most (k - 1) * 2**ceil(log2(k)) units in the last place of the
    largest addend: each order rounds k - 1 times, each time a number of at most k times the largest addend."""
    batch = TIED.batch(0, 12)
    apart = make_reference(*untied(TIED), micro_batch=micro_batch, mode="adama")
    apart.ties = ()
    parts = apart.gradients(batch)[1]
    addends = np.array([part for name in Tied.COPIES for part in parts[name]])
    (wanted,) = make_reference(TIED, micro_batch=micro_batch).gradients(batch)[1]["embed.weight"]
    with RecordingServer() as server, make_relay(TIED, server=server, micro_batch=micro_batch) as relay:
        take_step(relay, TIED, 0, 12)
        (got,) = server.take_gradients()["embed.weight"]
    units = np.abs(got.astype(float) - wanted.astype(float)) / np.spacing(np.abs(addends).max(0))
    assert units.max() <= (len(addends) - 1) * 2 ** np.ceil(np.log2(len(addends)))


# --- beside the weights


@pytest.mark.parametrize("place", [{}, {"link": ModelledLink(), "stash": "host"}], ids=["leased", "slots"])
@pytest.mark.parametrize("case", [*CASES, TIED], ids=str)
def test_h37_evaluation_and_forward_are_plain_pytorchs(case: Case, place: dict[str, Any]) -> None:
    plain = make_reference(case, micro_batch=5)
    model = plain.model
    with make_relay(case, micro_batch=5, **place) as relay:
        take_step(relay, case, 0, 12)
        model.load_state_dict(relay.state_dict())
        modes = [m.training for m in relay.model.modules()]
        stream = torch.get_rng_state()
        batch = case.batch(1, 12)
        loss = relay.evaluate(batch.inputs, batch.targets, case.loss, side=batch.side)
        assert [m.training for m in relay.model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), stream)
        relay.model.eval()
        out = relay.forward(batch.inputs, side=batch.side)
    model.eval()
    spans = [(0, 5), (5, 10), (10, 12)]
    with torch.no_grad():
        outs = [run_layers(layers_of(model), *(cut(t, *s) for t in (batch.inputs, batch.side or {}))) for s in spans]
        losses = [case.loss(o, cut(batch.targets, *s)).item() for o, s in zip(outs, spans, strict=True)]
    assert torch.equal(out, torch.cat(outs))
    assert loss == sum(float(np.float32((b - a) / 12)) * v for (a, b), v in zip(spans, losses, strict=True))


@pytest.mark.parametrize(
    "settings", [{}, {"stash": "host", "link": ModelledLink()}, {"loss_scale": LossScale(2.0**8)}, {"mode": "adama"}]
)
def test_gradients_of_inputs_and_given_side_inputs_are_returned(settings: dict[str, Any]) -> None:
    plain = make_reference(WATCHED, micro_batch=4)
    # The first layer needs no backward for its weights' sake.
    ours = WATCHED.make()
    ours.get_submodule("first").requires_grad_(False)
    with make_relay(WATCHED, ours, micro_batch=4, **settings) as relay:
        given, other = WATCHED.batch(0, 11), WATCHED.batch(0, 11)
        leaves = [[b.inputs[0].requires_grad_(), (b.side or {})["gate"].requires_grad_()] for b in (given, other)]
        result = relay.step(given.inputs, given.targets, WATCHED.loss, side=given.side)
        plain.step(other)
    assert [t.grad for t in leaves[0]] == [None, None]
    assert result.side_gradients is not None
    assert all(result.input_gradients[i][1] is None for i in range(3)), "no gradient was asked for here"
    assert torch.equal(torch.cat([result.input_gradients[i][0] for i in range(3)]), leaves[1][0].grad)
    assert torch.equal(torch.cat([result.side_gradients["gate"][i] for i in range(3)]), leaves[1][1].grad)


def test_gradients_of_a_side_input_reach_below_the_lowest_trained_layer() -> None:
    plain, ours = make_reference(WATCHED, micro_batch=4), WATCHED.make()
    for name in ("first", "second"):
        ours.get_submodule(name).requires_grad_(False)
    with make_relay(WATCHED, ours, micro_batch=4) as relay:
        given, other = WATCHED.batch(0, 11), WATCHED.batch(0, 11)
        gates = [(b.side or {})["gate"].requires_grad_() for b in (given, other)]
        result = relay.step(given.inputs, given.targets, WATCHED.loss, side=given.side)
        plain.step(other)
    assert result.input_gradients is None
    assert result.side_gradients is not None
    assert torch.equal(torch.cat([result.side_gradients["gate"][i] for i in range(3)]), gates[1].grad)


def test_a_step_inside_no_grad_trains_the_same() -> None:
    plain = make_reference(SIDES, micro_batch=5)
    with make_relay(SIDES, micro_batch=5) as relay:
        for step in range(2):
            with torch.no_grad():
                take_step(relay, SIDES, step, 12)
            plain.step(SIDES.batch(step, 12))
            compare_state(relay, plain)


def test_a_step_inside_autocast_trains_as_plain_pytorch_does_inside_it() -> None:
    plain = make_reference(BATCH_NORM, micro_batch=5)
    with make_relay(BATCH_NORM, micro_batch=5) as relay, torch.autocast("cpu", torch.bfloat16):
        for step in range(3):
            take_step(relay, BATCH_NORM, step, 12)
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                plain.step(BATCH_NORM.batch(step, 12))
            compare_state(relay, plain)


def test_on_several_threads_too() -> None:
    torch.set_num_threads(2)
    follow(BATCH_NORM, micro_batch=5, sizes=(12, 12))


def test_five_steps_agree_with_adamw() -> None:
    """On the same gradients, within units in the last place of the largest magnitude that a weight and what is taken
    from it have had: an absolute bound, since sums cancel (see the golden rule's own test)."""
    model = MLP.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    largest = {name: p.detach().abs().clamp(min=LR) for name, p in model.named_parameters()}
    with RecordingServer() as server, make_relay(MLP, server=server, micro_batch=5) as relay:
        for step in range(5):
            take_step(relay, MLP, step, 12)
            gradients = server.take_gradients()
            for name, parameter in model.named_parameters():
                parameter.grad = torch.from_numpy(gradients[name][0])
            optimizer.step()
            for name, parameter in model.named_parameters():
                largest[name] = torch.maximum(largest[name], parameter.detach().abs())
        weights = relay.state_dict()
    for name, parameter in model.named_parameters():
        units = (weights[name] - parameter.detach()).abs().numpy() / np.spacing(largest[name].numpy())
        assert units.max() <= UNITS_FROM_TORCH, name


@pytest.mark.parametrize("case", [*CASES, TIED], ids=str)
def test_h35_every_trainable_parameter_moves(case: Case) -> None:
    with make_relay(case, micro_batch=5) as relay:
        before = relay.state_dict()
        take_step(relay, case, 0, 12)
        after = relay.state_dict()
        for name, parameter in relay.model.named_parameters():
            if name not in case.zero:
                assert torch.equal(before[name], after[name]) is not parameter.requires_grad, name


def test_m1_frozen_weights_have_no_moments_and_get_no_gradient() -> None:
    frozen = next(c for c in CASES if c.name == "frozen prefix")
    with RecordingServer() as server, make_relay(frozen, server=server, micro_batch=5) as relay:
        take_step(relay, frozen, 0, 12)
        assert {n for n in server.layers() if not server.layout(n).trainable} == {"0:frozen", "1:frozen"}
        assert [call.layer for call in server.take()] == ["4", "3", "2"]
