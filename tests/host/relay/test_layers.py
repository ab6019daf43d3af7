"""The user's layers become relay layers, and every parameter is in exactly one EPS layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from relay_eps.errors import RelayError
from relay_eps.relay import Relay, RelayLayer
from relay_eps.relay.layers import eps_layers, plan_layers
from tests.host.relay.models import Sides, Tied
from tests.host.relay.plans import linears, plans_of


def described(model: nn.Module, layers: Any = None, groups: Any = None) -> list[tuple[str, list[str], bool]]:
    """Name, tensors and trainability of each EPS layer."""
    plans = plans_of(model, layers) if groups is None else plan_layers(model, layers, groups)
    return [(e.name, [t.name for t in e.layout.tensors], e.trainable) for e in eps_layers(plans)]


def test_a_sequential_is_its_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    assert [plan.name for plan in plans_of(model)] == ["0", "1", "2"]
    assert described(model) == [("0", ["0.weight", "0.bias"], True), ("2", ["2.weight"], True)]


def test_layers_are_named_as_modules_names_or_relay_layers() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": linears(2, 2, 2), "c": nn.Linear(2, 2)})
    plans = plans_of(model, ["a", model["b"], RelayLayer(lambda x: model["c"](x), [model["c"]])])
    assert [plan.name for plan in plans] == ["a", "b", "layer2"]
    assert [len(plan.trained) for plan in plans] == [2, 4, 2]


def test_h36_parameters_of_the_root_module_belong_to_the_layer_that_names_them() -> None:
    layers = described(Sides())
    assert ("bottom", ["embed.weight", "encode.weight", "encode.bias", "scale"], True) in layers


def test_a_relay_layer_is_cut_by_group_and_by_what_is_frozen() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(first, second))
    first.bias.requires_grad_(False)
    groups = [[first.weight, second.bias], [second.weight]]
    assert described(model, None, groups) == [
        ("0", ["0.0.weight", "0.1.bias"], True),
        ("0:frozen", ["0.0.bias"], False),
        ("0:group1", ["0.1.weight"], True),
    ]


def test_m5_a_shared_tensor_is_an_eps_layer_of_its_own() -> None:
    plans = plans_of(Tied())
    (tied,) = [e for e in eps_layers(plans) if e.tied]
    assert (tied.name, tied.users) == ("tied:embed.weight", (0, 1, 2))
    assert [len(plan.tied) for plan in plans] == [1, 1, 1]
    assert plans[0].own == ()


def test_a_module_used_by_two_layers_is_shared_tensor_by_tensor() -> None:
    shared = nn.Linear(2, 2)
    plans = plans_of(nn.Sequential(shared, nn.Tanh(), shared))
    assert [e.name for e in eps_layers(plans)] == ["tied:0.weight", "tied:0.bias"]
    assert [plan.name for plan in plans] == ["0", "1", "0"]


def test_layers_of_one_name_have_eps_layers_of_different_names() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    plans = plans_of(model, [RelayLayer(m, name="block") for m in model])
    assert [e.name for e in eps_layers(plans)] == ["block#0", "block#1"]


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (None, r"layers of ModuleDict are not known: pass layers=\[...\]"),
        ([], "has no layers"),
        (["a", "nowhere"], "no submodule named 'nowhere'"),
        (["a", 3], "layer 1 is a int: give a module, its name, or a RelayLayer"),
        (["a"], "b.weight, b.bias belong to no layer: name the layer that uses them"),
        (["a", "b", nn.Linear(7, 1)], r"layer 'layer2' has a parameter of shape \(1, 7\) that is not in the model"),
    ],
)
def test_layers_that_cannot_be_are_refused(layers: Any, says: str) -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with pytest.raises(RelayError, match=says):
        plans_of(model, layers)


def test_many_lost_parameters_are_counted() -> None:
    with pytest.raises(RelayError, match=r"1\.weight, 1\.bias, 2\.weight, 2\.bias and 2 more belong to no layer"):
        plans_of(linears(2, 2, 2, 2, 2), ["0"])


def test_a_trainable_parameter_without_a_group_is_refused() -> None:
    model = linears(2, 2, 2)
    with pytest.raises(RelayError, match=r"1\.bias are in no parameter group: add them, or set requires_grad=False"):
        plan_layers(model, None, [list(model.parameters())[:3]])


def test_a_model_without_a_trainable_layer_is_refused() -> None:
    with pytest.raises(RelayError, match="no layer of the model is trainable"):
        Relay(linears(2, 2).requires_grad_(False))
    model = linears(2, 2)
    parameters = list(model.parameters())
    model.requires_grad_(False)
    with pytest.raises(RelayError, match="no layer of the model is trainable"):
        Relay(model, params=parameters)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Linear(2, 2).double(), "0.weight is torch.float64, and the server keeps fp32 weights"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "0.weight is torch.complex64"),
        (lambda: nn.LazyLinear(2), "0.weight has no shape yet: run one forward of the model first"),
    ],
)
def test_parameters_that_fp32_cannot_hold_are_refused(make: Any, says: str) -> None:
    with pytest.raises(RelayError, match=says):
        plans_of(nn.Sequential(make()))


def test_h7_parameters_of_16_bits_are_widened_into_the_master_weights() -> None:
    model = linears(3, 4, 2).bfloat16()
    before = {name: p.detach().float() for name, p in model.named_parameters()}
    with Relay(model) as relay:
        weights = relay.state_dict()
        relay.step(torch.ones(2, 3), torch.zeros(2, 2), nn.functional.mse_loss)
    assert all(torch.equal(weights[name], value) for name, value in before.items())


# --- calling a layer


def run(layer: RelayLayer, carried: Any, **side: Any) -> Any:
    model = nn.Linear(1, 1)
    return plans_of(model, [RelayLayer(**{**layer.__dict__, "modules": [model], "name": "it"})])[0].run(carried, side)


def test_h25_arguments_are_passed_as_the_layer_wants_them() -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    assert run(RelayLayer(call), (1, 2)) == ((((1, 2),), {}), {})
    assert run(RelayLayer(call, unpack=True), (1, None)) == (((1, None), {}), {})
    assert run(RelayLayer(call, unpack=True), [1, 2]) == (((1, 2), {}), {})
    assert run(RelayLayer(call, unpack=True), {"a": 1, "b": "x"}) == (((), {"a": 1, "b": "x"}), {})
    assert run(RelayLayer(call, side=["m"]), 1, m=5, other=6) == (((1,), {"m": 5}), {})


def test_a_layer_that_provides_returns_what_it_carries_and_what_it_made() -> None:
    assert run(RelayLayer(lambda x: (x + 1, {"m": x}), provides=["m"]), 1) == (2, {"m": 1})


@pytest.mark.parametrize("out", [1, (1,), (1, 2), (1, {}), (1, {"m": 2, "n": 3}), [1, {"m": 2}]])
def test_a_layer_that_does_not_keep_its_promise_is_named(out: Any) -> None:
    with pytest.raises(RelayError, match=r"layer 'it' provides m: it must return \(carried, \{name: value\}\)"):
        run(RelayLayer(lambda x: out, provides=["m"]), 1)


def test_a_missing_side_input_is_named() -> None:
    with pytest.raises(RelayError, match="layer 'it' takes the side input 'm', which was not given or made yet"):
        run(RelayLayer(lambda x, m: x, side=["m"]), 1)


def test_only_tuples_lists_and_dicts_are_unpacked() -> None:
    with pytest.raises(RelayError, match="layer 'it' unpacks a tuple, list or dict, but got int"):
        run(RelayLayer(lambda x: x, unpack=True), 1)
