"""The relay as its user meets it: results, evaluation, wires, closing."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

from relay_eps.eps import GoldenEPS, SoftwareEPS
from relay_eps.errors import RelayError
from relay_eps.relay import LossScale, ModelledLink, Relay, seed_generators
from relay_eps.relay.link import from_numpy
from tests.host.relay.following import follow, make_relay, take_step
from tests.host.relay.models import CASES, MLP, SIDES, TIED, case, layers_of, vectors
from tests.host.relay.plans import linears
from tests.host.relay.reference import cut, run_layers
from tests.host.relay.servers import RecordingServer


def test_a_result_says_what_happened() -> None:
    with make_relay(MLP, micro_batch=5) as relay:
        take_step(relay, MLP, 0, 12)
        result = take_step(relay, MLP, 1, 12)
    assert (result.step, result.skipped, result.grad_norm) == (1, False, None)
    assert (result.micro_batches, result.samples) == (3, 12)
    assert result.input_gradients is None
    assert result.side_gradients is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_in_a_forked_process_the_relay_is_refused_and_does_not_hang() -> None:
    with make_relay(MLP) as relay:
        take_step(relay, MLP, 0, 6)
        child = os.fork()
        if not child:
            try:
                take_step(relay, MLP, 1, 6)
            except RelayError as error:
                os._exit(7 if "forked process" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        take_step(relay, MLP, 1, 6)


def test_the_relay_tells_how_it_is_set_up() -> None:
    with make_relay(MLP) as relay:
        assert relay.device == torch.device("cpu")
        assert not relay.deferred
        assert not relay.torn
        assert [e.name for e in relay.eps_layers] == ["0", "1", "2", "4"]
        assert [plan.name for plan in relay.plans] == ["0", "1", "2", "3", "4"]
    with make_relay(MLP, loss_scale=LossScale()) as relay:
        assert relay.deferred


@settings(max_examples=25)
@given(
    name=st.sampled_from(["mlp", "side inputs", "frozen middle", "parameter groups"]),
    n=st.integers(1, 9),
    micro_batch=st.none() | st.integers(1, 10),
    mode=st.sampled_from(["exact", "adama", "deferred"]),
    stash=st.sampled_from(["device", "host"]),
    jitter=st.sampled_from([None, 0.0, 0.001]),
    seed=st.integers(0, 2**40),
)
def test_any_setting_gives_plain_pytorchs_bits(
    name: str, n: int, micro_batch: int | None, mode: str, stash: str, jitter: float | None, seed: int
) -> None:
    chosen = next(c for c in CASES if c.name == name)
    rule: dict[str, Any] = {"max_grad_norm": 0.1} if mode == "deferred" else {"mode": mode}
    link = None if jitter is None else ModelledLink(jitter=jitter, seed=seed)
    follow(chosen, sizes=(n, n + 1), micro_batch=micro_batch, stash=stash, link=link, seed=seed, **rule)


def test_the_golden_server_gives_the_software_servers_bits() -> None:
    with RecordingServer(GoldenEPS()) as golden, make_relay(SIDES, micro_batch=5, server=golden) as judge:
        with make_relay(SIDES, micro_batch=5) as relay:
            for step in range(3):
                assert take_step(judge, SIDES, step, 12) == take_step(relay, SIDES, step, 12)
            weights = relay.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in judge.state_dict().items())


# --- 16-bit wires


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("chosen", [MLP, TIED, CASES[7]], ids=str)
@pytest.mark.parametrize("rule", ["exact", "adama", "clipped", "scaled"])
def test_a_16_bit_wire_trains_the_fp32_master_weights(chosen: Any, wire: str, rule: str) -> None:
    rules: dict[str, dict[str, Any]] = {
        "exact": {},
        "adama": {"mode": "adama"},
        "clipped": {"max_grad_norm": 1.0},
        "scaled": {"loss_scale": LossScale(2.0**7)},
    }
    with make_relay(chosen, wire=wire, micro_batch=4, **rules[rule]) as relay:
        losses = [take_step(relay, chosen, 0, 12).loss for _ in range(8)]
        assert all(loss == loss and abs(loss) < float("inf") for loss in losses)
        assert losses[-1] < losses[0]
        weights = relay.state_dict()
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}[wire]
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert not all(torch.equal(value, value.to(narrow).float()) for value in weights.values()), "the master is fp32"


@pytest.mark.parametrize("chosen", [c for c in CASES if "spectral" not in c.name], ids=str)
def test_h7_a_16_bit_wire_computes_what_a_16_bit_model_does(chosen: Any) -> None:
    """To the bit, for each micro-batch's gradients and the buffers; with the buffers in the wire's format too."""
    plain, batch = chosen.make().bfloat16(), chosen.batch(0, 12)
    settings: dict[str, Any] = {"wire": "bf16", "micro_batch": 5, "mode": "adama"}
    with (
        RecordingServer(wire="bf16") as server,
        make_relay(chosen, chosen.make().bfloat16(), server=server, **settings) as relay,
    ):
        take_step(relay, chosen, 0, 12)
        taken, state = server.take_gradients(), relay.state_dict()
    for micro, (start, stop) in enumerate(((0, 5), (5, 10), (10, 12))):
        inputs, side, targets = (narrowed(cut(t, start, stop)) for t in (batch.inputs, batch.side or {}, batch.targets))
        plain.zero_grad()
        out = run_layers(
            layers_of(plain),
            inputs,
            side,
            lambda layer, m=micro: seed_generators(0, 0, layer, m, torch.device("cpu")),  # type: ignore[misc]
        )
        loss = chosen.loss(out, targets)
        loss.backward(torch.full_like(loss, float(np.float32((stop - start) / 12))))
        for name, parameter in plain.named_parameters():
            if parameter.grad is not None:
                assert torch.equal(from_numpy(taken[name][micro]), parameter.grad), name
    assert all(torch.equal(state[name], buffer) for name, buffer in plain.named_buffers())


def narrowed(tree: Any) -> Any:
    """The floating tensors of a tree in bf16."""
    return pytree.tree_map(lambda t: t.bfloat16() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, tree)


# --- the order of things


def test_h41_an_update_runs_while_the_layer_below_computes() -> None:
    """The server is held up in the top layer's update until the bottom layer computes: no deadlock, so they overlap."""
    below = threading.Event()

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                below.set()
            return super().forward(x)

    class Waiting(RecordingServer):
        waited: bool | None = None

        def call(self, what: str, layer: str, *args: Any) -> None:
            if layer == "2" and self.waited is None:
                self.waited = below.wait(20)

    model = nn.Sequential(nn.Linear(7, 6), Watched(6, 6), nn.Linear(6, 5))
    with Waiting() as server, Relay(model, server=server) as relay:
        batch = vectors(0, 4)
        relay.step(batch.inputs, batch.targets, F.cross_entropy)
        assert server.waited is True


def test_a_layer_can_be_skipped_in_a_step_and_used_in_the_next() -> None:
    class Optional(nn.Linear):
        on = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if self.on else x

    middle = Optional(5, 5)
    with Relay(nn.Sequential(nn.Linear(7, 5), middle, nn.Linear(5, 5)), micro_batch=2) as relay:
        batch = vectors(0, 6)
        counts = []
        for on in (True, False, True):
            middle.on = on
            relay.step(batch.inputs, batch.targets, F.cross_entropy)
            counts.append([relay.server.applies(name) for name in relay.server.layers()])
    assert counts == [[1, 1, 1], [2, 1, 2], [3, 2, 3]]


# --- closing


@pytest.mark.parametrize("link", [None, ModelledLink()], ids=["leased", "slots"])
def test_closing_puts_the_weights_back_and_stops_the_threads(link: ModelledLink | None) -> None:
    before = set(threading.enumerate())
    model = MLP.make()
    relay = make_relay(MLP, model, link=link)
    take_step(relay, MLP, 0, 4)
    weights = relay.state_dict()
    relay.close()
    relay.close()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    plain = model(MLP.batch(0, 4).inputs).sum()
    plain.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert eventually(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(RelayError, match="step was called on a relay that is closed"):
        take_step(relay, MLP, 1, 4)


def test_a_given_server_stays_open_and_keeps_its_layers() -> None:
    with SoftwareEPS(threads=1) as server:
        with make_relay(MLP, server=server) as relay:
            take_step(relay, MLP, 0, 4)
        assert server.layers() == ("0", "1", "2", "4")
        assert server.applies("0") == 1


def test_h1_a_forgotten_relay_is_no_leak_of_threads() -> None:
    before = set(threading.enumerate())
    relay = make_relay(MLP, link=ModelledLink())
    take_step(relay, MLP, 0, 4)
    del relay
    gc.collect()
    assert eventually(lambda: set(threading.enumerate()) <= before)


def eventually(true: Any) -> bool:
    for _ in range(500):
        if true():
            return True
        time.sleep(0.01)
    return False


def test_a_model_can_be_trained_by_one_relay_after_the_other() -> None:
    model = linears(7, 6, 5)
    for wire in ("fp32", "bf16", "fp32"):
        with Relay(model, wire=wire) as relay:
            batch = vectors(0, 4)
            relay.step(batch.inputs, batch.targets, F.cross_entropy)
            weights = relay.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
        assert all(p.dtype == torch.float32 for p in model.parameters())


def test_a_model_whose_forward_runs_between_steps_sees_the_new_weights() -> None:
    """On a CPU with an fp32 wire the parameters are views of the server's memory."""
    plain = case("plain", lambda: linears(7, 6, 5), vectors)
    with make_relay(plain) as relay:
        for step in range(2):
            take_step(relay, plain, step, 4)
            relay.server.synchronize()
            fresh = plain.make()
            fresh.load_state_dict(relay.state_dict())
            x = vectors(9, 3).inputs
            with torch.no_grad():
                assert torch.equal(relay.model(x), fresh(x))
