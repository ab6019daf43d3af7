"""Recomputing: what users of the nearest systems reported, and what happens here instead.

The names follow public reports, in the order in which this project lists them. H23: OLMo-core pull request 828,
torchtitan issue 1323. H24: PyTorch issue 96136, fairscale issue 1035. H25: unsloth-zoo pull request 1218.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

from relay_eps.errors import NonFiniteLoss
from relay_eps.relay import ModelledLink, Relay, RelayLayer
from tests.host.relay.following import follow, make_relay, take_step, whole_state
from tests.host.relay.models import BATCH_NORM, CASES, MLP

#: Where layer inputs wait, and how often a layer runs: AdamA runs the last one twice too.
WAYS: dict[str, dict[str, Any]] = {
    "exact": {},
    "exact, slots, stash on the host": {"link": ModelledLink(), "stash": "host"},
    "adama": {"mode": "adama"},
    "adama, stash on the host": {"mode": "adama", "stash": "host"},
    "deferred": {"max_grad_norm": 0.1},
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


# --- H23


class Draws(nn.Module):
    """Multiplies with random numbers of several kinds, and keeps what it drew by the micro-batch's mark."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.drawn: dict[float, list[torch.Tensor]] = defaultdict(list)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x, mark = pair
        mask = F.dropout(torch.ones_like(x), 0.4)
        noise = torch.rand_like(x) + torch.randn_like(x) + torch.empty_like(x).exponential_()
        order = torch.randperm(x.shape[1])
        self.drawn[mark[0].item()].append(torch.stack([mask, noise, order.expand_as(x).float()]))
        return x[:, order] * self.weight * mask + noise * 0.01, mark


def marked(step: int, samples: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, each with a mark of its step and micro-batch."""
    return torch.ones(samples, 6), torch.arange(samples) // micro_batch + 100.0 * step


def on_the_first(out: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(out[0], targets)


@EVERY_WAY
def test_H23_the_recompute_draws_what_the_first_forward_drew_and_nothing_else_does(way: dict[str, Any]) -> None:
    layers = [Draws(6) for _ in range(3)]
    twice = len(layers) if way.get("mode") == "adama" else len(layers) - 1
    with Relay(nn.Sequential(*layers), micro_batch=2, **way) as relay:
        for step in range(2):
            relay.step(marked(step, 6, 2), torch.zeros(6, 6), on_the_first)
    seen = []
    for index, layer in enumerate(layers):
        assert len(layer.drawn) == 2 * 3, "two steps of three micro-batches"
        for draws in layer.drawn.values():
            assert len(draws) == (2 if index < twice else 1)
            assert all(torch.equal(draws[0], again) for again in draws[1:])
            seen.append(draws[0])
    for i, one in enumerate(seen):
        assert not any(torch.equal(one, other) for other in seen[i + 1 :]), "each layer, micro-batch, step has its own"


@EVERY_WAY
def test_H23_draws_follow_the_seed_and_not_the_callers_stream(way: dict[str, Any]) -> None:
    def losses(seed: int, caller: int) -> list[float]:
        torch.manual_seed(caller)
        with make_relay(MLP, micro_batch=5, seed=seed, **way) as relay:
            return [take_step(relay, MLP, step, 12).loss for step in range(3)]

    assert losses(1, 10) == losses(1, 20)
    assert losses(1, 10) != losses(2, 10)


class Failing(nn.Module):
    """Draws, and gives NaN where told."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7))
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * self.weight, 0.3) * (float("nan") if self.fails else 1.0)


@EVERY_WAY
def test_H23_the_callers_stream_is_left_where_it_was_also_by_a_step_that_fails(way: dict[str, Any]) -> None:
    failing = Failing()
    with Relay(nn.Sequential(failing, nn.Dropout(0.5), nn.Linear(7, 5)), micro_batch=5, **way) as relay:
        batch = MLP.batch(0, 12)
        torch.manual_seed(5)
        stream = torch.get_rng_state()
        for fails in (False, True, False):
            failing.fails = fails
            if fails:
                with pytest.raises(NonFiniteLoss):
                    relay.step(batch.inputs, batch.targets, F.cross_entropy)
            else:
                relay.step(batch.inputs, batch.targets, F.cross_entropy)
                relay.evaluate(batch.inputs, batch.targets, F.cross_entropy)
            assert torch.equal(torch.get_rng_state(), stream)


# --- H24


class Counts(nn.Module):
    """Buffers of every kind: changed in place, put anew, an integer, one that is not persistent, and a constant."""

    calls: torch.Tensor
    anew: torch.Tensor
    mean: torch.Tensor
    fixed: torch.Tensor
    hidden: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("anew", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(7))
        self.register_buffer("fixed", torch.arange(7.0))
        self.register_buffer("hidden", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            self.anew = self.anew + 1
            self.hidden.add_(1)
            self.mean.mul_(0.9).add_(x.detach().mean(0) * 0.1)
        return x * self.weight + self.calls * 0.01 + self.mean * 0.1 + self.fixed * 0.001


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("micro_batch", [None, 4, 5])
@EVERY_WAY
def test_H24_whatever_a_forward_counts_is_counted_once_a_micro_batch(
    way: dict[str, Any], micro_batch: int | None, position: int
) -> None:
    def chain() -> nn.Sequential:
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(7, 7), nn.Linear(7, 7)]
        layers.insert(position, Counts())
        return nn.Sequential(*layers)

    plain, model = chain(), chain()
    inputs = torch.randn(12, 7)
    micros = inputs.split(micro_batch or 12)
    with Relay(model, lr=1e-30, weight_decay=0.0, micro_batch=micro_batch, **way) as relay:
        # A rate so small that no weight moves: what the buffers then hold is plain PyTorch's.
        for _ in range(3):
            relay.step(inputs, inputs, F.mse_loss)
            for micro in micros:
                plain(micro)
            counts = relay.model[position]  # type: ignore[index]
            assert counts.calls == counts.anew == counts.hidden == plain[position].calls
            for name, wanted in plain.named_buffers():
                assert torch.equal(relay.model.get_buffer(name), wanted), name


@pytest.mark.parametrize("case", [c for c in CASES if "norm" in c.name or c.name == "convolutions"], ids=str)
@EVERY_WAY
def test_H24_running_statistics_and_power_iterations_move_once(case: Any, way: dict[str, Any]) -> None:
    # Bit for bit beside plain PyTorch, the buffers among what is compared.
    follow(case, micro_batch=5, sizes=(12, 12), **way)


@EVERY_WAY
def test_H24_statistics_of_a_step_that_failed_did_not_move(way: dict[str, Any]) -> None:
    with make_relay(BATCH_NORM, micro_batch=6, **way) as relay:
        take_step(relay, BATCH_NORM, 0, 12)
        before = whole_state(relay)
        batch = BATCH_NORM.batch(1, 12)
        batch.inputs[7] = float("nan")
        with pytest.raises(NonFiniteLoss, match="micro-batch 1"):
            relay.step(batch.inputs, batch.targets, BATCH_NORM.loss)
        assert {n: v.tobytes() for n, v in whole_state(relay).items()} == {n: v.tobytes() for n, v in before.items()}


# --- H25


class Point(NamedTuple):
    """A carried value with names."""

    x: Any
    y: Any


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), st.sampled_from(["", "word"]))
TREES = st.recursive(
    st.one_of(PLAIN, st.sampled_from(["float tensor", "int tensor", "empty tensor", "bf16 tensor"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


def grown(tree: Any, x: torch.Tensor) -> Any:
    """The tree with tensors made of ``x`` where it names them."""
    kinds = {
        "float tensor": lambda: x * 2,
        "int tensor": lambda: x.detach().sign().long(),
        "empty tensor": lambda: x[:, :0],
        "bf16 tensor": lambda: x.bfloat16(),
    }
    return pytree.tree_map(lambda leaf: kinds[leaf]() if isinstance(leaf, str) and leaf in kinds else leaf, tree)


class Passes(nn.Module):
    """Adds a tree to what it carries as keyword arguments, and keeps the values that it was called with."""

    def __init__(self, tree: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.tree = tree
        self.calls: list[tuple[torch.Tensor, Any, Any]] = []

    def forward(self, x: torch.Tensor, *, tree: Any, note: Any = "default", side: Any) -> dict[str, Any]:
        self.calls.append((x.detach().clone(), pytree.tree_map(_copy, tree), (note, pytree.tree_map(_copy, side))))
        carried = [leaf.sum() for leaf in pytree.tree_leaves((tree, side)) if isinstance(leaf, torch.Tensor)]
        x = torch.tanh(self.linear(x)) + sum(value.float() for value in carried) * 0.001
        return {"x": x, "tree": grown(self.tree, x)}


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _same(a: Any, b: Any) -> bool:
    (leaves_a, spec_a), (leaves_b, spec_b) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    return spec_a == spec_b and all(
        x.dtype == y.dtype and torch.equal(x, y) if isinstance(x, torch.Tensor) else type(x) is type(y) and x == y
        for x, y in zip(leaves_a, leaves_b, strict=True)
    )


def last_loss(out: dict[str, Any], targets: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(out["x"], targets)


@given(trees=st.lists(TREES, min_size=3, max_size=3), side=TREES, way=st.sampled_from(list(WAYS.values())))
@settings(max_examples=40)
def test_H25_a_recompute_is_called_with_what_the_first_forward_was_called_with(
    trees: list[Any], side: Any, way: dict[str, Any]
) -> None:
    layers = [Passes(tree) for tree in trees]
    chain = [RelayLayer(layer, unpack=True, side=["side"]) for layer in layers]
    inputs = torch.randn(5, 4)
    given_side = grown(side, inputs)
    with Relay(nn.ModuleList(layers), chain, micro_batch=3, **way) as relay:
        relay.step({"x": inputs, "tree": None, "note": 7}, torch.zeros(5, 4), last_loss, side={"side": given_side})
    for index, layer in enumerate(layers):
        again = index < len(layers) - 1 or way.get("mode") == "adama"
        firsts, rest = layer.calls[:2], layer.calls[2:]
        assert len(rest) == (2 if again else 0)
        assert all(_same(one, other) for one, other in zip(firsts, rest, strict=False))
        assert all(call[2][0] == (7 if index == 0 else "default") for call in layer.calls)
