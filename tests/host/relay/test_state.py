"""Weights under the model's own names, and checkpoints from which a run goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from relay_eps.eps.layout import Section
from relay_eps.errors import CheckpointError, RelayError, TornStep
from relay_eps.relay import LossScale, ModelledLink, Relay
from tests.host.relay.following import assert_same_state, assert_unchanged, make_relay, take_step, whole_state
from tests.host.relay.models import BATCH_NORM, CASES, GROUPS, MLP, SIDES, TIED, Case
from tests.host.relay.plans import linears
from tests.host.relay.servers import ServerProxy
from tests.host.relay.trouble import CHAIN

# --- state dicts


@pytest.mark.parametrize("case", [*CASES, TIED], ids=str)
def test_h33_m6_a_state_dict_is_the_models_own(case: Case) -> None:
    model = case.make()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    with make_relay(case, model, link=ModelledLink()) as relay:
        got = relay.state_dict()
        assert_same_state(got, expected)
        take_step(relay, case, 0, 12)
        trained = relay.state_dict()
        assert_same_state(got, expected)
    fresh = case.make()
    fresh.load_state_dict(trained)
    assert_same_state(fresh.state_dict(), trained)
    assert_same_state(model.state_dict(), trained)


def test_buffers_of_a_module_in_two_places_have_both_names() -> None:
    norm = nn.BatchNorm1d(3).eval()
    model = nn.Sequential(nn.Linear(3, 3), norm, nn.Linear(3, 3), norm)
    names = set(model.state_dict())
    with Relay(model) as relay:
        assert set(relay.state_dict()) == names
        relay.load_state_dict(relay.state_dict())


def test_h33_weights_loaded_after_construction_count() -> None:
    other = nn.Module.state_dict(BATCH_NORM.make())
    changed = {name: value + 1 if value.is_floating_point() else value + 2 for name, value in other.items()}
    for link in (None, ModelledLink()):
        with make_relay(BATCH_NORM, link=link) as relay:
            take_step(relay, BATCH_NORM, 0, 4)
            relay.load_state_dict(changed)
            assert_same_state(relay.state_dict(), changed)
            fresh = BATCH_NORM.make()
            fresh.load_state_dict(changed)
            batch = BATCH_NORM.batch(1, 4)
            with torch.no_grad():
                expected = BATCH_NORM.loss(fresh.eval()(batch.inputs), batch.targets).item()
            assert relay.evaluate(batch.inputs, batch.targets, BATCH_NORM.loss) == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("0.bias"), "0.bias is missing"),
        (lambda d: d.update(extra=torch.zeros(1)), "extra is not in the model"),
        (lambda d: d.update({"2.weight": torch.zeros(3)}), r"2.weight has shape \(3,\), not \(20,\)"),
        (lambda d: d.clear(), "and 4 more"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_is_changed(change: Any, says: str) -> None:
    with make_relay(MLP) as relay:
        before = relay.state_dict()
        wrong = {name: value + 1 for name, value in before.items()}
        change(wrong)
        with pytest.raises(RelayError, match=f"do not fit the model: .*{says}"):
            relay.load_state_dict(wrong)
        assert_same_state(relay.state_dict(), before)


class Interrupted(ServerProxy):
    """Is interrupted in its third write once it is armed."""

    left: int | None = None

    def write(self, layer: str, section: Section, values: Any) -> Any:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return super().write(layer, section, values)


def test_a_load_interrupted_half_way_leaves_the_relay_torn(tmp_path: Path) -> None:
    with Interrupted() as server, make_relay(MLP, server=server) as relay:
        relay.save(tmp_path)
        zeros = {name: torch.zeros_like(v) for name, v in MLP.make().state_dict().items()}
        for load in (lambda: relay.load_state_dict(zeros), lambda: relay.load(tmp_path)):
            server.left = 3
            with pytest.raises(KeyboardInterrupt):
                load()
            with pytest.raises(TornStep, match="loaded half; load a checkpoint"):
                relay.state_dict()
            server.left = None
            relay.load(tmp_path)
            assert_same_state(relay.state_dict(), MLP.make().state_dict())


# --- checkpoints


PLACES: list[dict[str, Any]] = [
    {},
    {"stash": "host"},
    {"link": ModelledLink()},
    {"link": ModelledLink(jitter=0.001), "stash": "host"},
]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize(
    ("case", "settings"),
    [(CHAIN, {}), (SIDES, {"mode": "adama"}), (TIED, {"max_grad_norm": 0.1}), (GROUPS, {}), (CASES[3], {})],
    ids=str,
)
def test_h31_h32_a_resumed_run_gives_the_bits_of_an_undisturbed_one(
    case: Case, settings: dict[str, Any], place: dict[str, Any], tmp_path: Path
) -> None:
    """Also where the weights and the stash lie elsewhere; with a scheduler, and after a change of seed."""

    def scheduled(relay: Relay) -> Any:
        return lr_scheduler.OneCycleLR(relay.optimizer, 0.1, total_steps=10)

    with make_relay(case, micro_batch=5, seed=3, **settings) as relay:
        scheduler = scheduled(relay)
        for step in range(5):
            if step == 2:
                relay.save(tmp_path, {"scheduler": scheduler.state_dict(), "position": [step, "text"]})
            take_step(relay, case, step, 12)
            scheduler.step()
        undisturbed = whole_state(relay)
    model = case.make()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(3)
    with make_relay(case, model, micro_batch=5, seed=99, **settings, **place) as relay:
        scheduler = scheduled(relay)
        extra = relay.load(tmp_path)
        assert extra["position"] == [2, "text"]
        assert (relay.steps_done, relay.seed) == (2, 3)
        scheduler.load_state_dict(extra["scheduler"])
        for step in range(2, 5):
            take_step(relay, case, step, 12)
            scheduler.step()
        assert_unchanged(undisturbed, whole_state(relay))


def test_the_loss_scale_and_its_counters_resume(tmp_path: Path) -> None:
    scale = LossScale(2.0**6, growth_interval=2)
    with make_relay(MLP, loss_scale=scale) as relay:
        for step in range(3):
            take_step(relay, MLP, step, 4)
        relay.steps_skipped = 7
        relay.save(tmp_path)
    again = LossScale(2.0**3)
    with make_relay(MLP, loss_scale=again) as relay:
        relay.load(tmp_path)
        assert again == scale
        assert again.scale == 2.0**7
        assert relay.steps_skipped == 7


def test_buffers_of_every_type_resume(tmp_path: Path) -> None:
    class Buffers(nn.Module):
        def __init__(self, value: int) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float64):
                self.register_buffer(str(dtype).replace("torch.", "as_"), torch.full((2, 3), value).to(dtype))
            self.register_buffer("strided", torch.arange(6.0).view(2, 3).t() * value)
            self.register_buffer("scalar", torch.tensor(value))
            self.register_buffer("passing", torch.tensor(value), persistent=False)

        def relay_layers(self) -> list[Any]:
            return [self.lin]

    with Relay(Buffers(5)) as relay:
        relay.save(tmp_path)
        expected = relay.state_dict()
    with Relay(Buffers(0)) as relay:
        relay.load(tmp_path)
        got = relay.state_dict()
        assert "passing" not in got
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert got[name].dtype == value.dtype
            assert torch.equal(got[name], value), name


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Relay(linears(7, 3)), "another model"),
        (lambda: make_relay(BATCH_NORM), "another model|buffers"),
        (lambda: Relay(m := MLP.make(), params=[{"params": [p]} for p in m.parameters()]), "1 parameter groups, this"),
    ],
)
def test_a_checkpoint_of_another_model_changes_nothing(make: Any, says: str, tmp_path: Path) -> None:
    with make_relay(MLP) as relay:
        take_step(relay, MLP, 0, 4)
        relay.save(tmp_path)
    with make() as relay:
        before = whole_state(relay)
        with pytest.raises(CheckpointError, match=says):
            relay.load(tmp_path)
        assert not relay.torn
        assert_unchanged(before, whole_state(relay))
        assert relay.steps_done == 0


def test_buffers_of_other_shapes_are_refused_before_anything_is_changed(tmp_path: Path) -> None:
    def make(size: int) -> nn.Module:
        model = linears(3, 3)
        model[0].register_buffer("extra", torch.zeros(size))
        return model

    with Relay(make(2)) as relay:
        relay.save(tmp_path)
    with Relay(make(3)) as relay:
        before = whole_state(relay)
        with pytest.raises(CheckpointError, match=r"its buffers differ in 0\.extra"):
            relay.load(tmp_path)
        assert_unchanged(before, whole_state(relay))


def test_saving_again_keeps_one_checkpoint_and_loading_takes_it(tmp_path: Path) -> None:
    with make_relay(MLP) as relay:
        for step in range(3):
            take_step(relay, MLP, step, 4)
            path = relay.save(tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == [path.name]
        take_step(relay, MLP, 3, 4)
        relay.load(path)
        assert relay.steps_done == 3
        with pytest.raises(CheckpointError):
            relay.load(tmp_path / "nowhere")
        assert not relay.torn


def test_a_group_setting_held_as_a_tensor_is_saved_as_a_number(tmp_path: Path) -> None:
    with make_relay(MLP) as relay:
        relay.optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
        relay.save(tmp_path)
    with make_relay(MLP) as relay:
        relay.load(tmp_path)
        assert relay.optimizer.param_groups[0]["lr"] == 0.25
        assert np.isclose(relay.optimizer.hyper()[0].beta1, 0.9)
