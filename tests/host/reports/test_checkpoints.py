"""Checkpoints: what users of the nearest systems reported, and what happens here instead.

The names follow public reports, in the order in which this project lists them. H31: Megatron-LM issue 1842. H32:
ColossalAI issue 4528, DeepSpeed pull request 7786. H33: torchao's README, verl issue 5995.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay_eps.eps import GoldenEPS, SoftwareEPS
from relay_eps.eps.layout import Section
from relay_eps.errors import CheckpointError, RelayError
from relay_eps.relay import LossScale, ModelledLink, Relay, RelayLayer
from tests.host.eps.bits import assert_same_bits
from tests.host.relay.following import assert_same_state, assert_unchanged, make_relay, take_step, whole_state
from tests.host.relay.models import BATCH_NORM, GROUPS, MLP, SIDES, TIED, Case
from tests.host.relay.servers import section

PLACES: dict[str, Callable[[], dict[str, Any]]] = {
    "leased": dict,
    "slots, stash on the host": lambda: {"link": ModelledLink(jitter=0.001), "stash": "host"},
    "golden server": lambda: {"server": GoldenEPS()},
    "two threads": lambda: {"server": SoftwareEPS(threads=2)},
}
MODES: dict[str, Callable[[], dict[str, Any]]] = {
    "eager": dict,
    "adama": lambda: {"mode": "adama"},
    "clipping and loss scaling": lambda: {"max_grad_norm": 0.05, "loss_scale": LossScale(2.0**20, growth_interval=3)},
}


class Run:
    """A relay with a scheduler, for a few steps."""

    def __init__(self, case: Case, settings: dict[str, Any]) -> None:
        self.case = case
        self.relay = make_relay(case, micro_batch=5, seed=3, **settings)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.relay.optimizer, max_lr=0.02, total_steps=12)
        self.losses: list[float] = []

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last):
            result = take_step(self.relay, self.case, step, 12)
            self.losses.append(result.loss)
            if not result.skipped:
                self.schedule.step()

    def save(self, folder: Path) -> None:
        self.relay.save(folder, {"schedule": self.schedule.state_dict()})

    def load(self, folder: Path) -> None:
        self.schedule.load_state_dict(self.relay.load(folder)["schedule"])

    def everything(self) -> dict[str, Any]:
        """What the next step depends on."""
        scale = self.relay.loss_scale
        counters = [self.relay.steps_done, self.relay.steps_skipped, *(vars(scale).values() if scale else ())]
        rates = [[g["lr"], *g["betas"]] for g in self.relay.optimizer.param_groups]
        return {
            **whole_state(self.relay),
            "counters": np.array(counters, np.float64),
            "rates": np.array(rates),
        }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", PLACES)
@pytest.mark.parametrize("case", [MLP, BATCH_NORM, GROUPS, TIED, SIDES], ids=str)
def test_H31_H32_a_resumed_run_goes_on_with_the_same_bits_wherever_it_runs(
    case: Case, after: str, mode: str, tmp_path: Path
) -> None:
    unbroken = Run(case, MODES[mode]())
    unbroken.steps(0, 5)
    broken = Run(case, {**MODES[mode](), "stash": "host"})
    broken.steps(0, 2)
    broken.save(tmp_path)
    broken.relay.close()
    # A new process has another seed, other weights, other rates until it loads.
    with torch.random.fork_rng():
        resumed = Run(case, {**MODES[mode](), **PLACES[after]()})
    for group in resumed.relay.optimizer.param_groups:
        group["lr"] = 0.5
    resumed.load(tmp_path)
    resumed.steps(2, 5)
    assert resumed.losses == unbroken.losses[2:]
    assert_unchanged(unbroken.everything(), resumed.everything())
    for run in (unbroken, resumed):
        run.relay.close()


# --- H32


class Chain(nn.Module):
    """Six tensors in three modules, which can be cut into layers in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(7, 6), nn.Linear(6, 6), nn.Linear(6, 5)


CUTS: dict[str, Callable[[Chain], list[Any]]] = {
    "one by one": lambda m: [m.a, m.b, m.c],
    "one layer": lambda m: [RelayLayer(lambda x: m.c(m.b(m.a(x))), [m.a, m.b, m.c], name="all")],
    "two below": lambda m: [RelayLayer(lambda x: m.b(m.a(x)), [m.a, m.b], name="below"), m.c],
    "two above": lambda m: [m.a, RelayLayer(lambda x: m.c(m.b(x)), [m.c, m.b], name="above")],
}


@pytest.mark.parametrize("mode", ["exact", "adama"])
@pytest.mark.parametrize("target", CUTS)
@pytest.mark.parametrize("source", CUTS)
def test_H32_moments_and_steps_find_their_tensors_however_the_model_is_cut(
    source: str, target: str, mode: str, tmp_path: Path
) -> None:
    batch = MLP.batch(0, 12)
    first, second = Chain(), Chain()
    with Relay(first, CUTS[source](first), mode=mode, micro_batch=5) as relay:
        for _ in range(2):
            relay.step(batch.inputs, batch.targets, F.cross_entropy)
        saved = state_by_tensor(relay)
        relay.save(tmp_path)
        relay.step(batch.inputs, batch.targets, F.cross_entropy)
        wanted = state_by_tensor(relay)
    with Relay(second, CUTS[target](second), mode=mode, micro_batch=5) as relay:
        relay.load(tmp_path)
        assert_same_tensors(state_by_tensor(relay), saved)
        relay.step(batch.inputs, batch.targets, F.cross_entropy)
        assert_same_tensors(state_by_tensor(relay), wanted)


def state_by_tensor(relay: Relay) -> dict[str, Any]:
    """p, m, v and t by the tensor's own name."""
    found = {}
    for eps in relay.eps_layers:
        for spec in eps.layout.tensors:
            for each in (Section.P, Section.M, Section.V):
                found[f"{spec.name}/{each.value}"] = section(relay.server, spec.name, each)
            found[f"{spec.name}/t"] = np.array(relay.server.applies(eps.name), np.float32)
    return found


def assert_same_tensors(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert values.any(), f"{name} has something to lose"
        assert_same_bits(got[name], values, name)


def test_H32_a_checkpoint_that_lacks_anything_the_relay_needs_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with make_relay(MLP) as relay:
        take_step(relay, MLP, 0, 6)
        relay.save(tmp_path)
    for other in (BATCH_NORM, SIDES, GROUPS):
        with make_relay(other) as relay:
            before = whole_state(relay)
            with pytest.raises(CheckpointError):
                relay.load(tmp_path)
            assert_unchanged(before, whole_state(relay))
            assert relay.steps_done == 0


# --- H33


WIRES: dict[str, dict[str, Any]] = {
    "leased": {},
    "slots": {"link": ModelledLink()},
    "bf16": {"wire": "bf16"},
    "fp16, delays": {"wire": "fp16", "link": ModelledLink(jitter=0.002)},
}


def other_weights(case: Case, scale: float = 0.5) -> dict[str, torch.Tensor]:
    """A state dict of the case's model, of other values."""
    return {
        name: value * scale if value.is_floating_point() else value for name, value in case.make().state_dict().items()
    }


#: Batch norm's fp32 statistics and 16-bit weights do not go together in torch.
FITTING = [(c, w) for c in (MLP, BATCH_NORM, TIED) for w in WIRES if c is not BATCH_NORM or "wire" not in WIRES[w]]


@pytest.mark.parametrize("when", ["at once", "after a step", "after an evaluation"])
@pytest.mark.parametrize(("case", "wire"), [(c, WIRES[w]) for c, w in FITTING], ids=[f"{c}-{w}" for c, w in FITTING])
def test_H33_weights_loaded_at_any_time_are_those_that_train_evaluate_and_are_saved(
    case: Case, wire: dict[str, Any], when: str
) -> None:
    batch = case.batch(1, 12)
    with make_relay(case, micro_batch=5, **wire) as late:
        if when == "after a step":
            take_step(late, case, 0, 12)
        elif when == "after an evaluation":
            late.evaluate(batch.inputs, batch.targets, case.loss)
        late.load_state_dict(other_weights(case))
        assert_same_state(late.state_dict(), other_weights(case))
        loss = late.evaluate(batch.inputs, batch.targets, case.loss)
        trained = take_step(late, case, 1, 12).loss
    model = case.make()
    model.load_state_dict(other_weights(case))
    with make_relay(case, model, micro_batch=5, **wire) as early:
        early.steps_done = late.steps_done - 1
        assert early.evaluate(batch.inputs, batch.targets, case.loss) == loss
        assert take_step(early, case, 1, 12).loss == trained


def copy_in_place(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])


def put_data(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.data = values[name].clone()


def put_one_parameter(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    model.get_submodule("4").weight = nn.Parameter(values["4.weight"].clone())


BEHIND_ITS_BACK: dict[str, Callable[[nn.Module, dict[str, torch.Tensor]], Any]] = {
    "load_state_dict": lambda model, values: model.load_state_dict(values),
    "load_state_dict(assign=True)": lambda model, values: model.load_state_dict(values, assign=True),
    "copy_": copy_in_place,
    "data": put_data,
    "a new parameter": put_one_parameter,
    "to another type": lambda model, values: model.to(torch.float64),
}


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@pytest.mark.parametrize("way", BEHIND_ITS_BACK)
def test_H33_weights_put_into_the_model_behind_the_relays_back_count_or_are_an_error(
    way: str, wire: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    values, model, batch = other_weights(MLP), MLP.make(), MLP.batch(1, 12)
    with make_relay(MLP, model, micro_batch=5, **wire) as relay:
        for step in range(steps):
            take_step(relay, MLP, step, 12)
        before = relay.state_dict()
        try:
            BEHIND_ITS_BACK[way](model, values)
        except RuntimeError:
            # torch itself refuses to write where no memory is: nothing happened, and nothing has to be done.
            assert_same_state(relay.state_dict(), before)
            return
        if way in ("load_state_dict", "copy_"):
            assert_same_state(relay.state_dict(), values)
            take_step(relay, MLP, 1, 12)
            assert all(not torch.equal(value, values[name]) for name, value in relay.state_dict().items())
            return
        calls: list[Callable[[], Any]] = [
            relay.state_dict,
            lambda: relay.load_state_dict(values),
            lambda: relay.evaluate(batch.inputs, batch.targets, MLP.loss),
            lambda: relay.forward(batch.inputs),
            lambda: take_step(relay, MLP, 1, 12),
            lambda: relay.save(tmp_path),
        ]
        for call in calls:
            with pytest.raises(RelayError, match=r"\.weight was .*close this relay.*load_state_dict"):
                call()
        assert not list(tmp_path.iterdir())
    # The way out that the sentence names.
    with make_relay(MLP, model, **wire) as relay:
        relay.load_state_dict(values)
        assert_same_state(relay.state_dict(), values)
