"""What the server is asked to do with a step's gradients, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay_eps.eps.layout import Section
from relay_eps.relay import Relay, RelayLayer
from tests.host.relay.following import LR, compare_state, make_reference, make_relay, take_step
from tests.host.relay.models import MLP, TIED, Batch, case, vectors
from tests.host.relay.servers import RecordingServer, section


def calls_of(step: Callable[[Relay], Any], model: nn.Module, **settings: Any) -> list[tuple[Any, ...]]:
    """What, layer, first and scale of each changing call of one step."""
    with RecordingServer() as server, Relay(model, server=server, **settings) as relay:
        step(relay)
        return [(c.what, c.layer, c.first, c.scale) for c in server.take()]


def a_step(relay: Relay, n: int = 6) -> None:
    batch = vectors(0, n)
    relay.step(batch.inputs, batch.targets, F.cross_entropy)


def test_exact_mode_folds_and_applies_each_layer_once_from_the_top() -> None:
    assert calls_of(a_step, MLP.make(), micro_batch=2) == [("fold_apply", n, True, 1.0) for n in ("4", "2", "1", "0")]


def test_adama_folds_each_micro_batch_the_first_with_the_decay_the_last_with_the_apply() -> None:
    expected = []
    for name in ("4", "2", "1", "0"):
        expected += [("fold", name, True, 1.0), ("fold", name, False, 1.0), ("fold_apply", name, False, 1.0)]
    assert calls_of(a_step, MLP.make(), micro_batch=2, mode="adama") == expected


def test_h42_adama_with_one_micro_batch_folds_and_applies_once() -> None:
    expected = [("fold_apply", name, True, 1.0) for name in ("4", "2", "1", "0")]
    assert calls_of(a_step, MLP.make(), mode="adama") == expected


def test_deferred_commit_sums_first_and_folds_after_the_whole_backward() -> None:
    calls = calls_of(a_step, MLP.make(), micro_batch=2, max_grad_norm=1e-3)
    names = ("4", "2", "1", "0")
    assert [c[:3] for c in calls] == [(what, n, True) for what in ("accumulate", "fold_apply") for n in names]
    scales = {c[3] for c in calls[4:]}
    assert len(scales) == 1
    assert 0 < scales.pop() < 1


def test_a_tied_tensor_is_sent_when_its_lowest_user_has_contributed() -> None:
    with RecordingServer() as server, make_relay(TIED, server=server, micro_batch=4) as relay:
        take_step(relay, TIED, 0, 12)
        assert [c.layer for c in server.take()] == ["middle", "tied:embed.weight"]
    with RecordingServer() as server, make_relay(TIED, server=server, micro_batch=4, mode="adama") as relay:
        take_step(relay, TIED, 0, 12)
        assert [(c.what, c.layer) for c in server.take()] == [
            (what, layer) for layer in ("middle", "tied:embed.weight") for what in ("fold", "fold", "fold_apply")
        ]


def test_one_micro_batch_crosses_the_link_in_the_format_it_was_computed_in() -> None:
    def dtypes(**settings: Any) -> set[str]:
        with RecordingServer(wire="bf16") as server, Relay(MLP.make(), server=server, **settings) as relay:
            a_step(relay)
            return {c.grad.dtype.name for c in server.take() if c.grad is not None}

    assert dtypes() == {"uint16"}
    assert dtypes(micro_batch=2) == {"float32"}
    assert dtypes(micro_batch=2, mode="adama") == {"uint16"}


# --- gradients that do not come


class Gate(nn.Module):
    """Two linear layers; which of them is used depends on the first input of the micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(7, 7), nn.Linear(7, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.always(x) + (self.sometimes(x) if x[0, 0] > 0 else 0)


class Skipped(nn.Linear):
    """A layer that passes its input on where the first element is not above zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x[0, 0] > 0 else x


def signed(*signs: int) -> Batch:
    """Micro-batches of two samples whose first elements have these signs."""
    batch = vectors(0, 2 * len(signs))
    first = torch.tensor(signs).repeat_interleave(2)
    inputs = torch.cat([batch.inputs[:, :1].abs() * first[:, None] + 0.1 * first[:, None], batch.inputs[:, 1:]], 1)
    return Batch(inputs, batch.targets)


def gated() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(Gate(), nn.Linear(7, 5))


def skipping() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Identity(), Skipped(7, 7), nn.Linear(7, 5))


SIGNS = [(1, 1), (1, -1), (-1, 1), (-1, -1), (-1, 1, -1), (1, -1, -1)]


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "adama"}, {"max_grad_norm": 0.01}], ids=["exact", "adama", "deferred"]
)
@pytest.mark.parametrize("signs", SIGNS)
def test_a_layer_that_some_micro_batches_skip_is_plain_pytorchs(
    signs: tuple[int, ...], settings: dict[str, Any]
) -> None:
    """Where all skip it, it is neither decayed nor applied nor counted."""
    skips = case("skipping", skipping, lambda step, n: signed(*signs))
    plain = make_reference(skips, micro_batch=2, **settings)
    with make_relay(skips, micro_batch=2, **settings) as relay:
        for step in range(2):
            result, expected = take_step(relay, skips, step, 0), plain.step(signed(*signs))
            assert result.grad_norm == expected.norm
            compare_state(relay, plain)
        assert relay.server.applies("1") == (2 if 1 in signs else 0)


@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 0.01}], ids=str)
@pytest.mark.parametrize("signs", SIGNS)
def test_a_tensor_without_a_gradient_beside_others_counts_as_zero(
    signs: tuple[int, ...], settings: dict[str, Any]
) -> None:
    zero = frozenset() if 1 in signs else frozenset({"0.sometimes.weight", "0.sometimes.bias"})
    gate = case("gated", gated, lambda step, n: signed(*signs), zero=zero)
    plain = make_reference(gate, micro_batch=2, **settings)
    with make_relay(gate, micro_batch=2, **settings) as relay:
        for step in range(2):
            result, expected = take_step(relay, gate, step, 0), plain.step(signed(*signs))
            assert result.grad_norm == expected.norm, "zeros among the gradients must not move the norm's last bit"
            compare_state(relay, plain)


def test_the_user_is_told_once_which_tensors_got_no_gradient(caplog: pytest.LogCaptureFixture) -> None:
    gate = case("gated", gated, lambda step, n: signed(-1))
    with make_relay(gate) as relay:
        for step in range(3):
            take_step(relay, gate, step, 0)
    assert [r.getMessage() for r in caplog.records] == [
        "no gradient reached 0.sometimes.weight, 0.sometimes.bias: taken as zero while its neighbours are updated"
    ]


def test_an_unused_tied_tensor_is_left_alone() -> None:
    model = nn.ModuleDict({"used": nn.Linear(7, 7), "head": nn.Linear(7, 5), "idle": nn.Linear(2, 2)})
    layers = [
        RelayLayer(model["used"], [model["idle"]], name="low"),
        RelayLayer(model["head"], [model["idle"]], name="top"),
    ]
    for mode in ("exact", "adama"):
        with Relay(model, layers, lr=LR, mode=mode) as relay:
            before = relay.state_dict()["idle.weight"]
            a_step(relay)
            assert torch.equal(before, relay.state_dict()["idle.weight"])
            assert [relay.server.applies(n) for n in relay.server.layers()] == [1, 0, 0, 1]


def test_identical_micro_batches_give_adama_a_smaller_v() -> None:
    """With N a power of two, v is 1/N of Adam's, exactly, in the first step from zero."""
    batch = MLP.batch(0, 3)
    repeated = Batch(batch.inputs.repeat(4, 1), batch.targets.repeat(4))
    moments = {}
    for mode in ("exact", "adama"):
        with make_relay(MLP, MLP.make().eval(), micro_batch=3, mode=mode) as relay:
            relay.step(repeated.inputs, repeated.targets, F.cross_entropy)
            moments[mode] = {n: section(relay.server, n, Section.V) for n, _ in relay.model.named_parameters()}
    for name, v in moments["exact"].items():
        assert (moments["adama"][name] * 4 == v).all()
