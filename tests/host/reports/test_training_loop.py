"""The training loop: what users of the nearest systems reported, and what happens here instead.

The names follow public reports, in the order in which this project lists them. H34: torchao issue 959. H35: accelerate
issues 3770, 3785. H36: accelerate issue 767. H37: transformers issue 20130, DeepSpeed issue 860. H38: DeepSpeed pull
request 5252. H39 to H43 are in test_training_values.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as schedulers

from relay_eps.eps import AdamHyper
from relay_eps.errors import RelayError
from relay_eps.relay import Relay, RelayLayer
from relay_eps.training.events import Noted, Stepped
from relay_eps.training.run import train
from tests.host.relay.following import (
    LR,
    assert_unchanged,
    follow,
    make_relay,
    take_step,
    whole_state,
)
from tests.host.relay.models import CASES, GROUPS, MLP, SIDES, TIED, Case, case, vectors
from tests.host.relay.servers import ServerProxy
from tests.host.reports.servers import slow_server
from tests.host.reports.ways import EVERY_WAY, WAYS, reference_of
from tests.host.training.small import Events, config

# --- H34

MAKERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, [lambda n: 0.9**n] * len(o.param_groups)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, [lambda n: 0.9] * len(o.param_groups)),
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.1, total_iters=4),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 4, 2.0),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-3, 1e-2, 2),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 2e-2, total_steps=6),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.5),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.5, 3), schedulers.ExponentialLR(o, 0.9)], o
    ),
}


def test_H34_every_scheduler_that_torch_has_is_tried() -> None:
    assert set(schedulers.__all__) - {"LRScheduler"} <= set(MAKERS)


class SeenHyper(ServerProxy):
    """Keeps the hyper-parameters of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[AdamHyper]] = {}

    def fold_apply(self, layer: str, grad: Any, hyper: AdamHyper, *, first: bool, scale: float = 1.0) -> Any:
        self.seen.setdefault(layer, []).append(hyper)
        return super().fold_apply(layer, grad, hyper, first=first, scale=scale)


@pytest.mark.parametrize("case", [MLP, GROUPS], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_H34_schedulers_drive_a_real_optimizer_and_the_server_sees_what_they_set(name: str, case: Case) -> None:
    def advance(scheduler: Any, loss: float) -> None:
        if isinstance(scheduler, schedulers.ReduceLROnPlateau):
            scheduler.step(loss)
        else:
            scheduler.step()

    # Warnings are errors here, "step before optimizer.step" among them.
    with SeenHyper() as server, make_relay(case, server=server, micro_batch=5) as relay:
        assert isinstance(relay.optimizer, torch.optim.Optimizer)
        plain = torch.optim.AdamW(
            [{**group, "params": [nn.Parameter(torch.ones(1))]} for group in relay.optimizer.param_groups], lr=LR
        )
        ours, theirs = MAKERS[name](relay.optimizer), MAKERS[name](plain)
        settings: list[list[tuple[float, ...]]] = []
        for step in range(6):
            settings.append([(g["lr"], *g["betas"]) for g in plain.param_groups])
            take_step(relay, case, step, 12)
            relay.optimizer.zero_grad()
            advance(ours, 1.0)
            plain.step()
            advance(theirs, 1.0)
        for eps in relay.eps_layers:
            assert eps.group is not None
            seen = [(h.lr, h.beta1, h.beta2) for h in server.seen[eps.name]]
            assert seen == [each[eps.group] for each in settings]
        assert len({each[0] for each in settings}) > 1, "the scheduler did something"


def test_H34_the_optimizer_says_what_it_is_not() -> None:
    with make_relay(MLP) as relay:
        take_step(relay, MLP, 0, 6)
        before = whole_state(relay)
        with pytest.raises(RelayError, match=r"do not call optimizer\.step"):
            relay.optimizer.step()
        with pytest.raises(RelayError, match="fixed once the relay is made"):
            relay.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        record = relay.optimizer.state_dict()
        record["param_groups"][0]["lr"] = 0.25
        relay.optimizer.load_state_dict(record)
        assert relay.optimizer.hyper()[0].lr == 0.25
        assert_unchanged(before, whole_state(relay))


# --- H35


@EVERY_WAY
@pytest.mark.parametrize("case", [*CASES, TIED], ids=str)
def test_H35_every_trainable_parameter_moves_and_no_other(case: Case, way: dict[str, Any]) -> None:
    with make_relay(case, micro_batch=5, **way) as relay:
        before = relay.state_dict()
        trainable = {name: p.requires_grad for name, p in relay.model.named_parameters(remove_duplicate=False)}
        take_step(relay, case, 0, 12)
        after = relay.state_dict()
        for name, trains in trainable.items():
            assert torch.equal(before[name], after[name]) is not trains, name
        for eps in relay.eps_layers:
            assert relay.server.applies(eps.name) == int(eps.trainable)


@pytest.mark.parametrize("way", ["exact", "exact, slots, stash on the host"])
@pytest.mark.parametrize("freeze", [True, False])
def test_H35_what_is_frozen_or_unfrozen_too_late_is_an_error_and_not_a_silence(freeze: bool, way: str) -> None:
    model = MLP.make()
    weight = model.get_parameter("4.weight").requires_grad_(freeze)
    with make_relay(MLP, model, micro_batch=5, **WAYS[way]) as relay:
        take_step(relay, MLP, 0, 12)
        before = whole_state(relay)
        weight.requires_grad_(not freeze)
        with pytest.raises(RelayError, match=rf"4\.weight was {'frozen' if freeze else 'unfrozen'}"):
            take_step(relay, MLP, 1, 12)
        weight.requires_grad_(freeze)
        assert_unchanged(before, whole_state(relay))
        take_step(relay, MLP, 1, 12)
        weight.requires_grad_(not freeze)
    with make_relay(MLP, model, micro_batch=5) as relay:
        assert len([e for e in relay.eps_layers if not e.trainable]) == int(freeze)


# --- H36


class RootScale(nn.Sequential):
    """A chain whose root holds a parameter of its own, which no child knows."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 6), nn.Linear(6, 5))
        self.scale = nn.Parameter(torch.full((5,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


class NamedRootScale(nn.Module):
    """As `RootScale`, and says which layer uses the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(7, 6), nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.full((5,), 2.0))

    def relay_layers(self) -> list[Any]:
        return [
            self.below,
            RelayLayer(lambda x: self.above(x) * self.scale, [self.above], [self.scale], name="top"),
        ]


ROOT = case("root parameter", NamedRootScale, vectors)


@EVERY_WAY
def test_H36_parameters_of_the_root_module_itself_are_trained(way: dict[str, Any]) -> None:
    for each in (ROOT, SIDES):
        follow(each, micro_batch=5, sizes=(12, 12), **way)
    with make_relay(ROOT, micro_batch=5, **way) as relay:
        take_step(relay, ROOT, 0, 12)
        assert not torch.equal(relay.state_dict()["scale"], torch.full((5,), 2.0))


def test_H36_a_parameter_that_no_layer_names_is_an_error_that_names_it() -> None:
    for layers in (None, ["0", "1"], [RelayLayer(lambda x: x, name="all")]):
        with pytest.raises(RelayError, match=r"scale.*parameters=\[|belong to no layer"):
            Relay(RootScale(), layers)


# --- H37


class CountedFetches(ServerProxy):
    """Counts how often each layer's weights are asked for, and everything that would change a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched, self.changed = Counter[str](), Counter[str]()

    def fetch(self, layer: str, out: Any) -> Any:
        self.fetched[layer] += 1
        return super().fetch(layer, out)

    def lease(self, layer: str) -> Any:
        self.fetched[layer] += 1
        return super().lease(layer)

    def call(self, what: str, layer: str, grad: Any, first: bool, scale: float) -> None:
        self.changed[layer] += 1


@EVERY_WAY
@pytest.mark.parametrize("micro_batch", [None, 4, 1])
def test_H37_evaluation_fetches_each_layer_once_and_changes_nothing(
    way: dict[str, Any], micro_batch: int | None
) -> None:
    batch = MLP.batch(1, 12)
    with CountedFetches() as server, make_relay(MLP, server=server, micro_batch=micro_batch, **way) as relay:
        take_step(relay, MLP, 0, 12)
        before, modes = whole_state(relay), [m.training for m in relay.model.modules()]
        for call in (
            lambda: relay.evaluate(batch.inputs, batch.targets, MLP.loss),
            lambda: relay.forward(batch.inputs),
        ):
            server.fetched.clear()
            server.changed.clear()
            call()
            assert server.fetched == dict.fromkeys(server.layers(), 1)
            assert not server.changed
        assert_unchanged(before, whole_state(relay))
        assert [m.training for m in relay.model.modules()] == modes
        assert not relay.forward(batch.inputs).requires_grad


def test_H37_evaluation_stashes_nothing_whatever_the_depth() -> None:
    def peak(depth: int) -> int:
        layers = (nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(depth))
        with Relay(nn.Sequential(*layers), micro_batch=4) as relay:
            inputs = torch.randn(12, 32)
            with relay.measure_device_peak() as measured:
                relay.evaluate(inputs, inputs, F.mse_loss)
            return measured.bytes

    assert peak(20) == peak(5)


def broken_loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise OSError("no data")


@EVERY_WAY
def test_H37_an_evaluation_straight_after_a_step_or_a_failure_sees_its_weights_and_does_not_hang(
    way: dict[str, Any],
) -> None:
    batch = MLP.batch(9, 12)
    with slow_server(0) as server, make_relay(MLP, server=server, micro_batch=5, **way) as relay:
        plain = reference_of(MLP, way)
        for step in range(2):
            take_step(relay, MLP, step, 12)
            plain.step(MLP.batch(step, 12))
            with pytest.raises(OSError, match="no data"):
                relay.step(batch.inputs, batch.targets, broken_loss)
            loss = relay.evaluate(batch.inputs, batch.targets, MLP.loss)
            relay.steps_done = step + 1
            plain.model.eval()
            with torch.no_grad():
                parts = [
                    float(np.float32(len(t) / 12)) * MLP.loss(plain.model(x), t).item()
                    for x, t in zip(batch.inputs.split(5), batch.targets.split(5), strict=True)
                ]
            plain.model.train()
            assert loss == sum(parts)


# --- H38


@EVERY_WAY
def test_H38_training_says_nothing_that_was_not_asked_for(
    way: dict[str, Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with make_relay(MLP, micro_batch=5, **way) as relay:
        for step in range(5):
            take_step(relay, MLP, step, 12)
            batch = MLP.batch(step, 12)
            relay.evaluate(batch.inputs, batch.targets, MLP.loss)
        relay.save(tmp_path)
        relay.load(tmp_path)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_H38_what_has_to_be_said_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    # A tensor without a gradient, while its neighbours have one, in every step.
    with make_relay(SIDES, micro_batch=5) as relay:
        for step in range(4):
            take_step(relay, SIDES, step, 12)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "unused" in said


def test_H38_a_run_tells_its_steps_and_adds_no_notes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    events = Events()
    train(config(tmp_path), None, events)
    assert len(events.of(Stepped)) == config(tmp_path).steps
    assert events.of(Noted) == []
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
