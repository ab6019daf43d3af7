"""A parameter that a layer uses without saying so is found before a weight is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay_eps.errors import RelayError
from relay_eps.relay import Relay, RelayLayer
from relay_eps.relay.graph import check_declared
from tests.host.relay.models import CLASSES, vectors
from tests.host.relay.plans import plans_of


class Borrower(nn.Module):
    """Its upper layer uses ``gain``; whether it says so is up to the test."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(7, 5), nn.Linear(5, CLASSES)
        self.gain = nn.Parameter(torch.ones(5))
        self.borrows = True

    def layers(self, *declared: nn.Parameter) -> list[Any]:
        return [
            RelayLayer(self.low, parameters=[self.gain], name="low"),
            RelayLayer(
                lambda x: self.high(x * self.gain if self.borrows else x), [self.high], list(declared), name="high"
            ),
        ]


def step(relay: Relay) -> Any:
    batch = vectors(0, 4)
    return relay.step(batch.inputs, batch.targets, F.cross_entropy)


def test_an_undeclared_parameter_is_named_by_layer_and_shape() -> None:
    model = Borrower()
    with Relay(model, model.layers()) as relay:
        before = relay.state_dict()
        with pytest.raises(RelayError, match=r"layer 'high' uses a parameter of shape \(5,\).*RelayLayer"):
            step(relay)
        assert not relay.torn
        assert all(torch.equal(before[n], v) for n, v in relay.state_dict().items())
        # Refused again, not only in the first attempt.
        with pytest.raises(RelayError, match="layer 'high' uses"):
            step(relay)


def test_declared_it_is_tied_and_trained() -> None:
    model = Borrower()
    with Relay(model, model.layers(model.gain)) as relay:
        before = relay.state_dict()["gain"]
        step(relay)
        assert not torch.equal(before, relay.state_dict()["gain"])


def test_after_a_resume_the_first_step_looks_again(tmp_path: Path) -> None:
    model = Borrower()
    model.borrows = False
    with Relay(model, model.layers()) as relay:
        step(relay)
        relay.save(tmp_path)
    model = Borrower()
    with Relay(model, model.layers()) as relay:
        relay.load(tmp_path)
        with pytest.raises(RelayError, match="layer 'high' uses"):
            step(relay)


def test_the_whole_graph_is_searched() -> None:
    layer, stranger = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    (plan,) = plans_of(layer, [layer])
    x = torch.ones(1, 2)
    for _ in range(50):
        x = torch.tanh(layer(x))
    check_declared(plan, [x.sum(), torch.ones(1)])
    with pytest.raises(RelayError, match=r"parameter of shape \(2,\)"):
        check_declared(plan, [x.sum(), (layer(torch.ones(1, 2) * stranger)).sum()])
