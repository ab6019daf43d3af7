"""Buffers that a forward changes move once a micro-batch, whatever becomes of the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay_eps.errors import RelayError
from relay_eps.relay import Relay
from tests.host.relay.models import vectors
from tests.host.relay.trouble import Trouble, raising


class Counter(nn.Module):
    """Counts its forwards in a buffer, from the ``start``-th on; ``replace`` puts a new tensor there each time."""

    count: torch.Tensor

    def __init__(self, start: int = 0, *, replace: bool = False) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("constant", torch.arange(5.0))
        self.register_buffer("nothing", None)
        self._start, self._replace = start, replace
        self._forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._forwards >= self._start:
            if self._replace:
                self.count = self.count + 1
            else:
                self.count += 1
        self._forwards += 1
        return x


def train(relay: Relay, steps: int = 1, n: int = 6) -> None:
    for _ in range(steps):
        batch = vectors(relay.steps_done, n)
        relay.step(batch.inputs, batch.targets, F.cross_entropy)


def tracked(norm: nn.BatchNorm1d) -> int:
    """How many micro-batches batch norm has seen."""
    return int(norm.state_dict()["num_batches_tracked"])


def chain(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(7, 5), *middle, nn.Linear(5, 5))


class Seen(nn.Module):
    """Multiplies with a buffer that grows with each forward, and remembers what it was."""

    factor: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()))
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.factor += 1
        self.seen.append(float(self.factor))
        return x * self.factor


def test_h24_a_recompute_sees_the_values_that_the_first_forward_saw() -> None:
    layer = Seen()
    with Relay(chain(layer), micro_batch=2) as relay:
        train(relay, 2)
    assert layer.seen == [2, 3, 4, 2, 3, 4, 5, 6, 7, 5, 6, 7]


@pytest.mark.parametrize("settings", [{}, {"mode": "adama"}, {"max_grad_norm": 1.0}, {"stash": "host"}])
@pytest.mark.parametrize("replace", [False, True])
def test_h24_a_counter_counts_each_micro_batch_once(replace: bool, settings: dict[str, Any]) -> None:
    middle, last = Counter(replace=replace), Counter(replace=replace)
    with Relay(
        nn.Sequential(nn.Linear(7, 5), middle, nn.Sequential(last, nn.Linear(5, 5))), micro_batch=2, **settings
    ) as r:
        train(r, 3)
    assert (int(middle.count), int(last.count)) == (9, 9)


def test_h24_a_running_mean_that_was_right_by_chance_is_still_restored() -> None:
    """A layer that starts at zero feeds batch norm zeros: in the first step its mean does not move, later it does."""

    plain = chain(nn.BatchNorm1d(5))
    model = chain(nn.BatchNorm1d(5))
    with torch.no_grad():
        for p in model.get_submodule("0").parameters():
            p.zero_()
    with Relay(model, micro_batch=3, lr=0.1) as relay:
        train(relay)
        assert relay.state_dict()["1.running_mean"].eq(0).all()
        plain.load_state_dict(relay.state_dict())
        train(relay)
        moved = relay.state_dict()["1.running_mean"]
    with torch.no_grad():
        for part in vectors(1, 6).inputs.split(3):
            plain(part)
    assert not moved.eq(0).any()
    assert torch.equal(moved, plain.state_dict()["1.running_mean"])


def test_a_failure_restores_a_buffer_that_changed_only_in_a_later_micro_batch() -> None:
    counter, trouble = Counter(start=1), Trouble()
    with Relay(chain(counter, trouble), micro_batch=2) as relay:
        trouble.arm("first", 2, raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            train(relay)
        assert int(counter.count) == 0


def test_a_failed_first_step_learns_nothing_wrong() -> None:
    norm, trouble = nn.BatchNorm1d(5), Trouble()
    with Relay(chain(nn.Sequential(trouble, norm)), micro_batch=2) as relay:
        trouble.arm("first", 0, raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            train(relay)
        train(relay)
    assert tracked(norm) == 3


def test_a_module_switched_to_training_is_watched_from_then_on() -> None:
    norm = nn.BatchNorm1d(5)
    with Relay(chain(norm), micro_batch=2) as relay:
        norm.eval()
        train(relay)
        assert tracked(norm) == 0
        norm.train()
        train(relay, 2)
    assert tracked(norm) == 6


def test_a_buffer_that_begins_to_change_later_stops_one_step() -> None:
    # Four forwards a step, recomputes counted.
    counter = Counter(start=8)
    with Relay(chain(counter), micro_batch=3) as relay:
        train(relay, 2)
        before = relay.state_dict()
        with pytest.raises(RelayError, match="layer '1' changed its buffer count for the first time in step 2"):
            train(relay)
        assert all(torch.equal(before[n], v) for n, v in relay.state_dict().items() if n != "1.count")
        counted = int(counter.count)
        train(relay, 2)
        assert int(counter.count) == counted + 4


def test_two_layers_cannot_share_a_buffer_that_changes() -> None:
    norm = nn.BatchNorm1d(5)
    model = nn.Sequential(nn.Linear(7, 5), norm, nn.Linear(5, 5), nn.Sequential(norm, nn.Tanh()), nn.Linear(5, 5))
    with Relay(model, micro_batch=3) as relay:
        state = norm.state_dict()
        before = {name: value.clone() for name, value in state.items() if name in ("running_mean", "running_var")}
        with pytest.raises(RelayError, match=r"layers '1' and '3' share a module whose buffer .* make them one layer"):
            train(relay)
        assert all(torch.equal(value, norm.state_dict()[name]) for name, value in before.items())
        norm.eval()
        train(relay)


def test_m7_buffers_stay_where_the_layer_computes() -> None:
    counter = Counter()
    with Relay(chain(counter), micro_batch=3) as relay:
        train(relay)
        assert counter.count.device == relay.device
        assert relay.state_dict()["1.constant"].equal(torch.arange(5.0))
