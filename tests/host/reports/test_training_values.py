"""What a training loop computes: what users of the nearest systems reported, and what happens here instead.

The names follow public reports, in the order in which this project lists them. H39: DeepSpeed pull request 3097,
prime-rl pull request 3109. H40: Soup issue 331. H41: DeepSpeed issue 6834. H42: unofficial ports of AdamA. H43: the
known package for L2L. H34 to H38 are in test_training_loop.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from relay_eps.eps import AdamHyper, golden
from relay_eps.relay import ModelledLink, Relay, RelayLayer
from tests.host.eps.bits import assert_same_bits
from tests.host.relay.following import (
    assert_same_state,
    assert_unchanged,
    compare_state,
    follow,
    make_relay,
    take_step,
    whole_state,
)
from tests.host.relay.models import GROUPS, MLP, TIED, Case, case, vectors
from tests.host.reports.servers import slow_server, watched_server
from tests.host.reports.ways import EVERY_WAY, WAYS, reference_of

# --- H39


@EVERY_WAY
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", [MLP, TIED, GROUPS], ids=str)
def test_H39_a_server_and_a_link_that_are_late_change_no_bit(
    case: Case, seed: int, way: dict[str, Any], tmp_path: Path
) -> None:
    late = {**way, **({"link": ModelledLink(jitter=0.002, seed=seed)} if "link" in way else {})}
    plain = reference_of(case, way)
    with slow_server(seed, longest=0.002) as server, make_relay(case, server=server, micro_batch=5, **late) as relay:
        for step in range(3):
            assert take_step(relay, case, step, 12).loss == plain.step(case.batch(step, 12)).loss
            # State is read, saved and loaded at once, while nobody has waited for anything.
            relay.save(tmp_path)
            compare_state(relay, plain)
            relay.load(tmp_path)


# --- H40


@EVERY_WAY
def test_H40_weights_between_steps_are_either_the_servers_or_nan(way: dict[str, Any]) -> None:
    with make_relay(MLP, micro_batch=5, **way) as relay:
        for step in range(2):
            take_step(relay, MLP, step, 12)
            if "link" in way:
                assert all(bool(p.isnan().all()) for p in relay.model.parameters())
            else:
                assert_same_state({n: p.detach() for n, p in relay.model.named_parameters()}, relay.state_dict())


class Keeps(nn.Module):
    """Keeps views of its weights when it should not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 7)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept += [self.linear.weight.detach(), self.linear.bias.detach()[2:4], self.linear.weight.data.t()]
        return torch.tanh(self.linear(x))


@pytest.mark.parametrize("way", [way for way in WAYS.values() if "link" in way], ids=[n for n in WAYS if "slots" in n])
def test_H40_what_is_kept_of_a_freed_slot_reads_nan_afterwards(way: dict[str, Any]) -> None:
    layers = [Keeps() for _ in range(4)]
    batch = MLP.batch(0, 12)
    with Relay(nn.Sequential(*layers, nn.Linear(7, 5)), micro_batch=5, **way) as relay:
        for call in (
            lambda: relay.forward(batch.inputs),
            lambda: relay.evaluate(batch.inputs, batch.targets, F.cross_entropy),
            lambda: relay.step(batch.inputs, batch.targets, F.cross_entropy),
        ):
            call()
            kept = [view for layer in layers for view in layer.kept]
            assert len(kept) >= 4 * 3 * 3
            assert all(bool(view.isnan().all()) for view in kept)
            for layer in layers:
                layer.kept.clear()


class Aliases(nn.Module):
    """Returns what it got, views of it, its own weights, and one value twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((7,), 1.5))
        self.kind = kind

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = pair
        scaled = x * self.weight
        return {
            "itself": (scaled, y),
            "the same twice": (scaled, scaled),
            "views": (scaled[:, :], scaled.unsqueeze(0).squeeze(0)),
            "expanded": (scaled, y[:, :1].expand_as(y)),
            "transposed": (scaled.t().contiguous().t(), y),
            "its weights": (scaled, y + 0 * scaled),
            "views of its weights": (scaled, self.weight.expand_as(x)),
            "its input": (x, scaled),
        }[self.kind]


KINDS = (
    "itself",
    "the same twice",
    "views",
    "expanded",
    "transposed",
    "its weights",
    "views of its weights",
    "its input",
)


class Aliased(nn.Module):
    """A chain of `Aliases`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Aliases(kind) for _ in range(3))
        self.head = nn.Linear(7, 5)

    def relay_layers(self) -> list[Any]:
        start = RelayLayer(lambda x: (x, x.sin()), name="start")
        return [start, *self.blocks, RelayLayer(lambda pair: self.head(pair[0] + pair[1]), [self.head], name="end")]


@pytest.mark.parametrize("kind", KINDS)
@EVERY_WAY
def test_H40_values_that_share_memory_give_plain_pytorchs_gradients(kind: str, way: dict[str, Any]) -> None:
    zero = frozenset[str]()
    aliased = case(kind, lambda: Aliased(kind), vectors, zero=zero)
    follow(aliased, micro_batch=5, sizes=(12, 12), **way)


# --- H41


@pytest.mark.parametrize("place", [{}, {"link": ModelledLink()}], ids=["leased", "slots"])
@pytest.mark.parametrize("mode", ["exact", "adama"])
def test_H41_a_layer_is_updated_while_the_layer_below_is_in_its_backward(mode: str, place: dict[str, Any]) -> None:
    # The first update does not end before the backward of the layer below has begun: were they not side by side,
    # neither would ever come.
    waiting, reached = threading.Event(), threading.Event()
    overlapped: list[bool] = []

    class Below(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                waiting.wait(60)
                reached.set()
            return super().forward(x)

    def before(what: str) -> None:
        if what == "fold_apply" and not overlapped:
            waiting.set()
            overlapped.append(reached.wait(60))

    model = nn.Sequential(Below(7, 7), nn.Linear(7, 5))
    with watched_server(before) as server, Relay(model, server=server, micro_batch=6, mode=mode, **place) as relay:
        batch = MLP.batch(0, 12)
        relay.step(batch.inputs, batch.targets, F.cross_entropy)
    assert overlapped == [True]


# --- H42

CHAIN = case("chain", lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5)), vectors)


def test_H42_with_one_micro_batch_adama_is_adam_to_the_bit() -> None:
    states = []
    for mode in ("exact", "adama"):
        with make_relay(MLP, mode=mode) as relay:
            start = relay.state_dict()
            for step in range(3):
                take_step(relay, MLP, step, 12)
            assert all(not torch.equal(value, start[name]) for name, value in relay.state_dict().items())
            states.append(whole_state(relay))
    assert_unchanged(*states)


@pytest.mark.parametrize("count", [1, 2, 3, 12])
@pytest.mark.parametrize("mode", ["exact", "adama"])
def test_H42_the_step_counter_counts_mini_batches(mode: str, count: int) -> None:
    with make_relay(MLP, mode=mode, micro_batch=12 // count) as relay:
        for step in range(3):
            take_step(relay, MLP, step, 12)
            assert {relay.server.applies(layer) for layer in relay.server.layers()} == {step + 1}


@pytest.mark.parametrize("count", [1, 2, 3, 12])
@pytest.mark.parametrize("mode", ["exact", "adama"])
@pytest.mark.parametrize("decay", [0.0, 0.01, 0.5])
def test_H42_weight_decay_is_applied_once_a_mini_batch(decay: float, mode: str, count: int) -> None:
    # No gradient at all: the decay is all that moves a weight.
    batch = CHAIN.batch(0, 12)
    with Relay(CHAIN.make(), lr=0.1, weight_decay=decay, mode=mode, micro_batch=12 // count) as relay:
        weights = {name: value.numpy() for name, value in relay.state_dict().items()}
        for _ in range(2):
            relay.step(batch.inputs, batch.targets, lambda out, targets: (out * 0.0).sum())
            weights = {name: value * np.float32(1 - 0.1 * decay) for name, value in weights.items()}
        for name, value in relay.state_dict().items():
            assert_same_bits(value.numpy(), weights[name], name)
            assert decay == 0.0 or np.abs(value.numpy()).sum() < np.abs(CHAIN.make().state_dict()[name].numpy()).sum()


def folded(hyper: AdamHyper, m0: float, v0: float, gradients: Sequence[float]) -> tuple[float, float]:
    """m and v after a mini-batch of these gradients."""
    m, v = np.array([m0], np.float32), np.array([v0], np.float32)
    for i, g in enumerate(gradients):
        m, v = golden.fold(m, v, np.array([g], np.float32), hyper.fold_scalars(), scale=1.0, first=i == 0)
    return float(m[0]), float(v[0])


@given(
    gradients=st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=8),
    beta1=st.sampled_from([0.5, 0.9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_H42_a_mini_batch_decays_the_moments_once_and_its_order_does_not_matter(
    gradients: list[float], beta1: float, seed: int
) -> None:
    # Decay by beta**(1/N) at each fold would weigh the first micro-batch less than the last.
    hyper = AdamHyper(beta1=beta1)
    wanted_m = beta1 * 0.25 + (1 - beta1) * sum(gradients)
    wanted_v = 0.999 * 0.5 + 0.001 * sum(g * g for g in gradients)
    shuffled = list(np.random.default_rng(seed).permutation(gradients))
    for order in (gradients, gradients[::-1], shuffled):
        m, v = folded(hyper, 0.25, 0.5, order)
        assert m == pytest.approx(wanted_m, rel=1e-4, abs=1e-5)
        assert v == pytest.approx(wanted_v, rel=1e-4)


def test_H42_decay_by_a_root_of_beta_is_not_equivalent() -> None:
    hyper, n = AdamHyper(beta1=0.5), 4
    first, last = [4.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 4.0]

    def by_root(gradients: list[float]) -> float:
        beta, m = 0.5 ** (1 / n), 1.0
        for g in gradients:
            m = beta * m + (1 - beta) * g
        return m

    assert folded(hyper, 1.0, 0.0, first)[0] == folded(hyper, 1.0, 0.0, last)[0] == 0.5 + 0.5 * 4.0
    assert by_root(first) != by_root(last)
    assert by_root(last) != 0.5 + 0.5 * 4.0


# --- H43


@given(sizes=st.tuples(st.integers(1, 13), st.integers(1, 13)), mode=st.sampled_from(["exact", "adama"]))
@settings(max_examples=20)
def test_H43_the_loss_of_any_split_is_the_mean_over_the_batch(sizes: tuple[int, int], mode: str) -> None:
    samples, micro_batch = sizes
    batch, whole = CHAIN.batch(0, samples), CHAIN.make()
    wanted = F.cross_entropy(whole(batch.inputs), batch.targets).item()
    with make_relay(CHAIN, micro_batch=micro_batch, mode=mode) as relay:
        assert relay.evaluate(batch.inputs, batch.targets, CHAIN.loss) == pytest.approx(wanted, rel=1e-5)
        result = take_step(relay, CHAIN, 0, samples)
        assert result.loss == pytest.approx(wanted, rel=1e-5)
        assert result.micro_batches == -(-samples // micro_batch)
        assert result.samples == samples


@EVERY_WAY
@pytest.mark.parametrize("samples", [1, 2, 4])
def test_H43_a_batch_smaller_than_a_micro_batch_is_one_micro_batch(way: dict[str, Any], samples: int) -> None:
    for result in follow(MLP, micro_batch=5, sizes=(samples,) * 2, **way):
        assert result.micro_batches == 1


@EVERY_WAY
def test_H43_every_forward_returns_its_own_output_and_leaves_the_earlier_ones_alone(way: dict[str, Any]) -> None:
    model = MLP.make()
    with make_relay(MLP, micro_batch=5, **way) as relay:
        relay.model.eval()
        model.eval()
        given_out: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, samples in enumerate((12, 12, 3, 7)):
            batch = MLP.batch(number, samples)
            model.load_state_dict(relay.state_dict())
            with torch.no_grad():
                wanted = torch.cat([model(part) for part in batch.inputs.split(5)])
            given_out.append((relay.forward(batch.inputs), wanted))
            assert all(torch.equal(out, first) for out, first in given_out)
            take_step(relay, MLP, number, 6)
        assert all(torch.equal(out, first) for out, first in given_out), "an output is nobody else's memory"


class Constant(nn.Module):
    """Gives its own weights, whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(len(x), 5)


@EVERY_WAY
def test_H43_an_output_made_of_weights_alone_outlives_them(way: dict[str, Any]) -> None:
    with Relay(nn.Sequential(nn.Linear(7, 7), Constant()), micro_batch=5, **way) as relay:
        inputs = torch.randn(12, 7)
        out = relay.forward(inputs)
        assert torch.equal(out, torch.arange(5.0).expand(12, 5))
        relay.step(inputs, torch.zeros(12, 5), F.mse_loss)
        assert torch.equal(out, torch.arange(5.0).expand(12, 5))
