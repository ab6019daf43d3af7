"""What layers may pass to each other and do to what they get; what is refused, before a weight is changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay_eps.errors import RelayError
from relay_eps.relay import ModelledLink, Relay, RelayLayer, Whole
from tests.host.relay.following import follow, make_relay
from tests.host.relay.models import CLASSES, Batch, case, vectors
from tests.host.relay.plans import linears
from tests.host.relay.servers import RecordingServer


def step(relay: Relay, loss: Callable[[Any, Any], Any] = F.cross_entropy, **more: Any) -> Any:
    batch = vectors(relay.steps_done, 6)
    return relay.step(batch.inputs, batch.targets, loss, **more)


def chain(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(7, 5), *middle, nn.Linear(5, CLASSES))


# --- changes in place


class SideUser(nn.Module):
    """Changes its side input in place in the layer that is armed."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.a, self.b = nn.Linear(7, 7), nn.Linear(7, CLASSES)

    def low(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.a(x) * (mask.add_(1) if self.where == "low" else mask)

    def top(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.b(x * (mask.mul_(2) if self.where == "top" else mask))

    def relay_layers(self) -> list[Any]:
        return [
            RelayLayer(self.low, [self.a], name="low", side=["mask"]),
            RelayLayer(self.top, [self.b], name="top", side=["mask"]),
        ]


IN_PLACE: dict[str, tuple[str, nn.Module, dict[str, Any]]] = {
    "below": ("1", chain(nn.ReLU(inplace=True), nn.Linear(5, 5)), {}),
    "the batch": ("0", nn.Sequential(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(7, CLASSES)), nn.Tanh()), {}),
    "top": ("1", nn.Sequential(nn.Linear(7, 5), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, CLASSES))), {}),
    "side, below": ("low", SideUser("low"), {"side": {"mask": torch.rand(6, 1)}}),
    "side, top": ("top", SideUser("top"), {"side": {"mask": torch.rand(6, 1)}}),
}


@pytest.mark.parametrize("where", IN_PLACE)
def test_an_input_changed_in_place_is_found_before_a_weight_is_changed(where: str) -> None:
    layer, model, more = IN_PLACE[where]
    with Relay(model, micro_batch=3) as relay:
        before = relay.state_dict()
        with pytest.raises(RelayError, match=f"layer '{layer}' changed an input in place.*inplace=False"):
            step(relay, **more)
        assert not relay.torn
        assert all(torch.equal(before[n], v) for n, v in relay.state_dict().items())


def test_changes_in_place_are_fine_within_a_layer_and_on_what_needs_no_recompute() -> None:
    inplace = case("in place", lambda: chain(nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True))), vectors)
    follow(inplace, micro_batch=5, sizes=(12, 12))

    def frozen_prefix() -> nn.Module:
        model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, CLASSES))
        model.get_submodule("0").requires_grad_(False)
        return model

    follow(case("frozen prefix", frozen_prefix, vectors), micro_batch=5, sizes=(12, 12))


# --- values that lie in the weights


class Table(nn.Module):
    """Passes a weight of the lowest layer on to the top one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 6))
        self.body, self.deep = nn.Linear(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(7, CLASSES)

    def relay_layers(self) -> list[Any]:
        return [
            RelayLayer(
                lambda x: (x @ self.table, {"table": self.table.t()}), [], [self.table], "low", provides=["table"]
            ),
            self.body,
            self.deep,
            RelayLayer(lambda x, table: self.head(x @ table), [self.head], name="top", side=["table"]),
        ]


@pytest.mark.parametrize("settings", [{}, {"link": ModelledLink()}, {"link": ModelledLink(), "stash": "host"}], ids=str)
def test_h40_a_weight_passed_on_to_another_layer_keeps_its_values(settings: dict[str, Any]) -> None:
    follow(case("table", Table, vectors), micro_batch=5, sizes=(12, 12), **settings)


def test_h40_an_output_that_is_a_weight_outlives_its_slot() -> None:
    model = nn.Linear(7, CLASSES)
    layers = [RelayLayer(lambda x: (model(x), model.weight), [model])]
    weight = model.weight.detach().clone()
    with Relay(model, layers, link=ModelledLink()) as relay:
        _, out = relay.forward(vectors(0, 4).inputs)
    assert torch.equal(out, weight)


# --- values of other types


@dataclass
class Pair:
    """Not a type that autograd's tree functions know."""

    x: torch.Tensor
    y: int


def test_h35_tensors_hidden_in_an_object_are_refused_not_trained_without_gradient() -> None:
    model = nn.ModuleDict({"a": nn.Linear(7, 5), "b": nn.Linear(5, CLASSES)})
    layers = [
        RelayLayer(lambda x: Pair(model["a"](x), 1), [model["a"]], name="a"),
        RelayLayer(lambda pair: model["b"](pair.x), [model["b"]], name="b"),
    ]
    with Relay(model, layers) as relay, pytest.raises(RelayError, match="layer 'a' passes tensors on inside a Pair"):
        step(relay)


def test_h25_an_object_without_tensors_passes() -> None:
    model = nn.ModuleDict({"a": nn.Linear(7, 5), "b": nn.Linear(5, CLASSES)})
    seen = []

    def top(pair: Any) -> torch.Tensor:
        seen.append(pair[1])
        out: torch.Tensor = model["b"](pair[0])
        return out

    thing = Exception("a plain object")
    layers = [RelayLayer(lambda x: (model["a"](x), thing), [model["a"]]), RelayLayer(top, [model["b"]])]
    with Relay(model, layers) as relay:
        step(relay)
    assert seen == [thing]


def test_a_mask_for_all_samples_reaches_every_micro_batch_whole() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(7, 7), nn.Linear(7, CLASSES)

        def relay_layers(self) -> list[Any]:
            return [RelayLayer(lambda x, mask: self.a(x) * mask, [self.a], name="a", side=["mask"]), self.b]

    def batch(step: int, n: int) -> Batch:
        plain = vectors(step, n)
        return Batch(plain.inputs, plain.targets, {"mask": Whole(torch.linspace(0, 1, 7))})

    follow(case("shared mask", Shared, batch), micro_batch=5, sizes=(12, 12))


def test_values_carried_twice_may_differ_in_the_last_bit_only() -> None:
    """A tensor that goes up two ways is two values to the layers above: its gradients are added per way."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(7, 7), nn.Linear(7, 7), nn.Linear(7, CLASSES)

        def fork(self, x: torch.Tensor) -> Any:
            h = torch.tanh(self.a(x))
            return h, {"memory": h}

        def relay_layers(self) -> list[Any]:
            return [
                RelayLayer(self.fork, [self.a], name="a", provides=["memory"]),
                RelayLayer(lambda h, memory: self.b(h) + h * memory, [self.b], name="b", side=["memory"]),
                RelayLayer(lambda h, memory: self.c(h * memory), [self.c], name="c", side=["memory"]),
            ]

    twice = case("twice", Twice, vectors)
    with RecordingServer() as server, make_relay(twice, server=server) as relay:
        step(relay)
        got = {name: parts[0] for name, parts in server.take_gradients().items()}
    model: Any = twice.make()
    batch = vectors(0, 6)
    h = torch.tanh(model.a(batch.inputs))
    F.cross_entropy(model.c((model.b(h) + h * h) * h), batch.targets).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(torch.from_numpy(got[name]), parameter.grad, rtol=1e-5, atol=1e-7), name


# --- the loss


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda out, t: F.cross_entropy(out, t, reduction="none"), r"mean loss as one number, not shape \(6,\)"),
        (lambda out, t: 3.0, "as one number, not float"),
        (lambda out, t: F.cross_entropy(out.detach(), t), "loss of micro-batch 0 does not depend on any weight"),
    ],
)
def test_h35_a_loss_that_cannot_train_is_refused(loss: Any, says: str) -> None:
    with Relay(chain()) as relay:
        with pytest.raises(RelayError, match=says):
            step(relay, loss)
        assert step(relay).step == 0


def test_a_loss_of_one_element_is_a_loss() -> None:
    with Relay(chain()) as ours, Relay(chain()) as theirs:
        theirs.load_state_dict(ours.state_dict())
        assert step(ours, lambda out, t: F.cross_entropy(out, t).view(1, 1)) == step(theirs)


def test_the_loss_sees_each_micro_batch_once_in_exact_mode() -> None:
    seen = []

    def loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(targets.tolist())
        return F.cross_entropy(out, targets)

    with Relay(chain(), micro_batch=4) as relay:
        targets = vectors(0, 6).targets.tolist()
        step(relay, loss)
    assert seen == [targets[:4], targets[4:]]


# --- side inputs


def test_a_side_input_that_a_layer_makes_cannot_be_given() -> None:
    with Relay(Table()) as relay, pytest.raises(RelayError, match="side input 'table' is made by layer 'low'"):
        step(relay, side={"table": torch.zeros(6, 1)})


def test_a_missing_side_input_leaves_no_trace() -> None:
    with Relay(SideUser("")) as relay:
        for _ in range(2):
            with pytest.raises(RelayError, match="layer 'low' takes the side input 'mask'"):
                step(relay)
        step(relay, side={"mask": torch.ones(6, 1), "unused": torch.ones(6)})


# --- how often and when


@pytest.mark.parametrize(("mode", "top"), [("exact", ["3"]), ("adama", ["3", "3"])])
@pytest.mark.parametrize("micro_batch", [6, 1])
def test_a_layer_crosses_the_link_twice_however_many_micro_batches(micro_batch: int, mode: str, top: list[str]) -> None:
    """In exact mode the last layer crosses it once: its forward keeps the graph."""

    class Counting(RecordingServer):
        def __init__(self) -> None:
            super().__init__()
            self.fetches: list[str] = []

        def fetch(self, layer: str, out: Any) -> Any:
            self.fetches.append(layer)
            return super().fetch(layer, out)

    settings: dict[str, Any] = {"link": ModelledLink(), "micro_batch": micro_batch, "mode": mode}
    with Counting() as server, Relay(linears(7, 6, 5, 4, CLASSES), server=server, **settings) as relay:
        step(relay)
        assert server.fetches == ["0", "1", "2", *top, "2", "1", "0"]


def test_forward_and_evaluate_fetch_each_layer_once_and_keep_nothing() -> None:
    kept: list[Any] = []

    class Watch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = x * 1
            kept.append(weakref.ref(out))
            return out

    with Relay(chain(Watch(), nn.Linear(5, 5), nn.Linear(5, 5)), micro_batch=2) as relay:
        batch = vectors(0, 6)
        relay.evaluate(batch.inputs, batch.targets, F.cross_entropy)
        relay.forward(batch.inputs)
    assert len(kept) == 6
    assert all(ref() is None for ref in kept)
