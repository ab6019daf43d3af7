"""Choices are checked first, and a relay that cannot be made leaves the model as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from relay_eps.eps import Format, SoftwareEPS
from relay_eps.eps.layout import LayerLayout, Section, TensorSpec
from relay_eps.errors import ContractError, RelayError
from relay_eps.relay import LossScale, ModelledLink, Relay, build
from relay_eps.relay.link import LeasedLink
from relay_eps.relay.slots import MemoryLink
from tests.host.relay.plans import linears
from tests.host.relay.servers import ServerProxy


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "sgd"}, "unknown mode 'sgd': use 'exact' or 'adama'"),
        ({"stash": "disk"}, "unknown stash 'disk': use 'device' or 'host'"),
        ({"micro_batch": 0}, "at least 1 sample, not 0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be finite and above 0"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm must be finite"),
        ({"mode": "adama", "max_grad_norm": 1.0}, "AdamA folds each gradient .* use mode='exact'"),
        ({"mode": "adama", "loss_scale": LossScale()}, "AdamA folds each gradient"),
        ({"device": "meta"}, "device meta is not supported: use 'cpu' or 'cuda'"),
        ({"wire": "fp8"}, "fp8"),
        ({"lr": -1.0}, "lr"),
        ({"params": []}, "empty parameter list|parameter"),
    ],
)
def test_h14_choices_that_cannot_be_are_refused_and_the_model_is_as_it_was(settings: Any, says: str) -> None:
    model = linears(3, 4, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((RelayError, ContractError, ValueError), match=says):
        Relay(model, **settings)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_h4_without_a_cuda_device_one_is_refused_in_a_sentence() -> None:
    with pytest.raises(RelayError, match="torch sees no CUDA device: use device='cpu'"):
        Relay(linears(3, 2), device="cuda")


def test_the_wire_of_a_given_server_is_its_own() -> None:
    with SoftwareEPS(wire="bf16", threads=1) as server:
        with pytest.raises(RelayError, match="the server's wire format is bf16, not fp32"):
            Relay(linears(3, 2), server=server, wire="fp32")
        assert server.layers() == ()
        with Relay(linears(3, 2), server=server, wire="bf16"):
            assert server.layers() == ("0",)


def test_the_link_suits_device_and_server() -> None:
    class NoLeases(ServerProxy):
        @property
        def capabilities(self) -> Any:
            return type(self.inner.capabilities)(**{**self.inner.capabilities.__dict__, "leases": False})

    cpu = torch.device("cpu")
    for server, model, kind in (
        (SoftwareEPS(threads=1), None, LeasedLink),
        (SoftwareEPS(threads=1), ModelledLink(), MemoryLink),
        (SoftwareEPS(wire=Format.BF16, threads=1), None, MemoryLink),
        (NoLeases(), None, MemoryLink),
    ):
        with server:
            link = build.make_link(server, cpu, model)
            assert isinstance(link, kind)
            link.close()


def test_a_modelled_link_is_for_machines_without_the_device() -> None:
    with SoftwareEPS(threads=1) as server, pytest.raises(RelayError, match="use it with device='cpu'"):
        build.make_link(server, torch.device("cuda", 0), ModelledLink())


# --- moving the weights


class FullServer(ServerProxy):
    """Refuses a layer, once it has some."""

    def create(self, layout: LayerLayout) -> None:
        if len(self.layers()) == 2:
            raise ContractError("no more room")
        super().create(layout)


@pytest.mark.parametrize("link", [None, ModelledLink()], ids=["leased", "slots"])
def test_m8_when_the_server_is_full_the_model_gets_its_weights_back(link: ModelledLink | None) -> None:
    model = linears(3, 4, 5, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with FullServer() as server:
        with pytest.raises(ContractError, match="no more room"):
            Relay(model, server=server, link=link)
        assert server.layers() == ()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with Relay(model) as relay:
        assert all(torch.equal(before[name], value) for name, value in relay.state_dict().items())


def test_a_server_that_holds_a_layer_of_that_name_is_left_as_it_was() -> None:
    model = linears(3, 4, 2)
    with SoftwareEPS(threads=1) as server:
        server.create(LayerLayout("1", (TensorSpec("mine", (3,)),)))
        server.write("1", Section.P, np.ones(32, np.float32)).result()
        with pytest.raises(ContractError, match="'1' is there already"):
            Relay(model, server=server)
        assert server.layers() == ("1",)
        assert server.read("1", Section.P).result()[:3].tolist() == [1, 1, 1]
    assert all(p.isfinite().all() for p in model.parameters())


def test_m8_the_models_own_storage_is_gone_once_the_server_has_it() -> None:
    model = linears(30, 40, 5)
    storages = [p.untyped_storage() for p in model.parameters()]
    with Relay(model, link=ModelledLink()):
        now = {p.untyped_storage().data_ptr() for p in model.parameters()}
        assert not now & {s.data_ptr() for s in storages}
        assert sum(p.untyped_storage().nbytes() for p in model.parameters()) <= 4 * len(storages)


def test_a_parameter_without_values_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(RelayError, match=r"0\.weight is on the meta device"):
        Relay(model)


def test_weights_of_any_strides_come_and_go_by_value() -> None:
    model = linears(3, 4)
    model[0].weight = nn.Parameter(torch.arange(12.0).view(3, 4).t())
    expected = model.state_dict()["0.weight"].clone()
    with Relay(model) as relay:
        assert torch.equal(relay.state_dict()["0.weight"], expected)
    assert torch.equal(model.state_dict()["0.weight"], expected)
