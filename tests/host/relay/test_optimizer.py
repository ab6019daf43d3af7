"""The facade is an optimizer that schedulers and training loops take as any other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim import lr_scheduler

from relay_eps.eps.hyper import AdamHyper
from relay_eps.errors import ContractError, RelayError
from relay_eps.relay import Relay
from relay_eps.relay.optimizer import RelayOptimizer
from tests.host.relay.following import compare_state, make_reference, make_relay, take_step
from tests.host.relay.models import GROUPS, MLP
from tests.host.relay.plans import linears

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-1, step_size_up=3, cycle_momentum=True),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def move(scheduler: Any) -> None:
    """One scheduler step; ReduceLROnPlateau sees a loss that does not fall."""
    scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_h34_schedulers_work_without_warnings_and_move_as_with_adamw(name: str) -> None:
    plain_model = MLP.make()
    twin = torch.optim.AdamW(plain_model.parameters(), lr=1e-2)
    with warnings.catch_warnings(), make_relay(MLP, micro_batch=5) as relay:
        warnings.simplefilter("error")
        ours, theirs = SCHEDULERS[name](relay.optimizer), SCHEDULERS[name](twin)
        seen = set()
        for step in range(4):
            take_step(relay, MLP, step, 6)
            twin.step()
            for scheduler in (ours, theirs):
                move(scheduler)
            (group,) = relay.optimizer.param_groups
            assert group["lr"] == twin.param_groups[0]["lr"]
            assert tuple(group["betas"]) == tuple(twin.param_groups[0]["betas"])
            seen.add((group["lr"], tuple(group["betas"])))
        assert len(seen) > 1


def test_h34_what_a_scheduler_sets_is_what_the_next_step_uses() -> None:
    plain = make_reference(GROUPS, micro_batch=5)
    base = plain.hyper
    with make_relay(GROUPS, micro_batch=5) as relay:
        scheduler = lr_scheduler.LambdaLR(relay.optimizer, lambda t: 0.5**t)
        for step in range(4):
            factor = 0.5**step
            plain.hyper = lambda name, f=factor: AdamHyper(**{**base(name).__dict__, "lr": base(name).lr * f})  # type: ignore[misc]
            take_step(relay, GROUPS, step, 12)
            plain.step(GROUPS.batch(step, 12))
            compare_state(relay, plain)
            scheduler.step()


def test_groups_changed_by_hand_take_effect_in_the_next_step() -> None:
    plain = make_reference(MLP, micro_batch=5)
    with make_relay(MLP, micro_batch=5) as relay:
        take_step(relay, MLP, 0, 12)
        plain.step(MLP.batch(0, 12))
        (group,) = relay.optimizer.param_groups
        group.update(lr=torch.tensor(0.5), betas=[0.5, 0.75], eps=1e-3, weight_decay=0.1, v_scale=2.0)
        plain.hyper = lambda name: AdamHyper(0.5, 0.5, 0.75, 1e-3, 0.1, 2.0)
        take_step(relay, MLP, 1, 12)
        plain.step(MLP.batch(1, 12))
        compare_state(relay, plain)


def test_values_outside_the_contract_are_refused_before_anything_happens() -> None:
    with make_relay(MLP) as relay:
        before = relay.state_dict()
        relay.optimizer.param_groups[0]["lr"] = float("nan")
        with pytest.raises(ContractError, match="lr must be finite"):
            take_step(relay, MLP, 0, 4)
        assert not relay.torn
        relay.optimizer.param_groups[0]["lr"] = 1e-2
        assert all(torch.equal(before[n], v) for n, v in relay.state_dict().items())
        assert take_step(relay, MLP, 0, 4).step == 0


@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"eps": float("inf")}, {"weight_decay": -1}])
def test_the_constructor_refuses_them_too(bad: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        Relay(linears(2, 2), **bad)


def test_step_is_the_relays_alone() -> None:
    with make_relay(MLP) as relay:
        lr_scheduler.LambdaLR(relay.optimizer, lambda t: 1.0)
        take_step(relay, MLP, 0, 4)
        before = relay.state_dict()
        with pytest.raises(RelayError, match=r"do not call optimizer\.step\(\) yourself"):
            relay.optimizer.step()
        with pytest.raises(RelayError, match="do not call"):
            relay.optimizer.step(lambda: 0.0)
        relay.optimizer.zero_grad()
        assert all(torch.equal(before[n], v) for n, v in relay.state_dict().items())


def test_hooks_see_one_step_for_each_update() -> None:
    counted: list[None] = []
    with make_relay(MLP, micro_batch=2) as relay:
        relay.optimizer.register_step_post_hook(lambda *_: counted.append(None))
        for step in range(3):
            take_step(relay, MLP, step, 6)
        relay.step(MLP.batch(0, 2).inputs, torch.tensor([-100, -100]), F.cross_entropy, count=-100)
    assert len(counted) == 3


def test_a_hook_that_raises_leaves_a_whole_step() -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not today")

    with make_relay(MLP, micro_batch=2) as relay:
        handle = relay.optimizer.register_step_post_hook(refuse)
        with pytest.raises(ValueError, match="not today"):
            take_step(relay, MLP, 0, 6)
        handle.remove()
        assert not relay.torn
        assert relay.steps_done == 1
        assert {relay.server.applies(e.name) for e in relay.eps_layers} == {1}
        take_step(relay, MLP, 1, 6)


def test_groups_are_fixed_once_the_relay_is_made() -> None:
    with make_relay(MLP) as relay, pytest.raises(RelayError, match="groups are fixed once the relay is made"):
        relay.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})


def test_its_state_dict_round_trips() -> None:
    model = linears(2, 3, 2)
    optimizer = RelayOptimizer([{"params": [p], "lr": 0.1 * i} for i, p in enumerate(model.parameters(), 1)])
    other = RelayOptimizer([{"params": [p]} for p in model.parameters()])
    other.load_state_dict(optimizer.state_dict())
    assert other.hyper() == optimizer.hyper()
    assert [g["lr"] for g in other.param_groups] == [0.1, 0.2, 0.1 * 3, 0.4]
