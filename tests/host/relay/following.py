"""A relay and the plain reference, step by step beside each other, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from relay_eps.eps.hyper import AdamHyper
from relay_eps.eps.layout import Section
from relay_eps.relay import Relay, StepResult
from relay_eps.relay.link import to_numpy
from tests.host.eps.bits import assert_same_bits
from tests.host.relay.models import Case, Tied
from tests.host.relay.reference import Expected, Reference
from tests.host.relay.servers import RecordingServer, section

LR = 1e-2


def parameter_groups(case: Case, model: nn.Module) -> list[dict[str, Any]] | None:
    """The case's parameter groups, as an optimizer takes them; a tensor is in the first group that names it."""
    if not case.groups:
        return None
    groups: list[dict[str, Any]] = [{**settings, "params": []} for _, settings in case.groups]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[_group(case, name)]["params"].append(parameter)
    return groups


def hypers(case: Case) -> Callable[[str], AdamHyper]:
    """Each tensor's hyper-parameters by its name."""

    def of(name: str) -> AdamHyper:
        if not case.groups:
            return AdamHyper(lr=LR)
        settings = dict(case.groups[_group(case, name)][1])
        beta1, beta2 = settings.pop("betas", (0.9, 0.999))
        return AdamHyper(**{"lr": LR, "beta1": beta1, "beta2": beta2, **settings})

    return of


def _group(case: Case, name: str) -> int:
    return next(i for i, (prefix, _) in enumerate(case.groups) if name.startswith(prefix))


def make_relay(case: Case, model: nn.Module | None = None, **settings: Any) -> Relay:
    """A relay of the case's model, at the learning rate that `hypers` has."""
    model = case.make() if model is None else model
    return Relay(model, params=parameter_groups(case, model), lr=LR, **settings)


def make_reference(case: Case, model: nn.Module | None = None, **settings: Any) -> Reference:
    """The plain loop over the case's model."""
    model = case.make() if model is None else model
    ties = Tied.COPIES if isinstance(model, Tied) and model.untied else ()
    return Reference(model, hypers(case), case.loss, zero=case.zero, ties=ties, **settings)


def take_step(relay: Relay, case: Case, step: int, n: int, **more: Any) -> StepResult:
    """A step on the case's batch ``step``."""
    batch = case.batch(step, n)
    return relay.step(batch.inputs, batch.targets, case.loss, side=batch.side, **more)


def follow(
    case: Case,
    *,
    sizes: Sequence[int] = (12,) * 5,
    micro_batch: int | None = None,
    reference: Reference | None = None,
    mode: str = "exact",
    max_grad_norm: float | None = None,
    seed: int = 0,
    **settings: Any,
) -> list[StepResult]:
    """Train both on mini-batches of ``sizes``, and compare after each: every gradient that the server got, loss, norm,
    weights, moments, buffers; and the caller's random stream.
    """
    shared: dict[str, Any] = {"micro_batch": micro_batch, "mode": mode, "max_grad_norm": max_grad_norm, "seed": seed}
    plain = reference if reference is not None else make_reference(case, **shared)
    results = []
    with RecordingServer() as server, make_relay(case, server=server, **shared, **settings) as relay:
        for step, n in enumerate(sizes):
            torch.manual_seed(step)
            stream = torch.get_rng_state()
            result = take_step(relay, case, step, n)
            assert torch.equal(torch.get_rng_state(), stream), "the caller's random stream was moved"
            expected = plain.step(case.batch(step, n))
            assert not result.skipped
            assert result.loss == expected.loss
            assert result.grad_norm == expected.norm
            compare_gradients(server, expected)
            compare_state(relay, plain)
            results.append(result)
    return results


def compare_gradients(server: RecordingServer, expected: Expected) -> None:
    """Fails unless the server got the expected gradients, and nothing else, since the last look."""
    taken = server.take_gradients()
    assert taken.keys() == expected.gradients.keys()
    for name, parts in expected.gradients.items():
        assert len(taken[name]) == len(parts), f"{name} was folded {len(taken[name])} times"
        for got, wanted in zip(taken[name], parts, strict=True):
            assert_same_bits(got, wanted, f"gradient of {name}")


def compare_state(relay: Relay, plain: Reference) -> None:
    """Fails at the first bit of weights, moments and buffers that differs."""
    for name, state in plain.moments.items():
        assert_same_bits(section(relay.server, name, Section.M), state.m, f"m of {name}")
        assert_same_bits(section(relay.server, name, Section.V), state.v, f"v of {name}")
    assert_same_state(relay.state_dict(), {name: t.cpu() for name, t in plain.model.state_dict().items()})


def assert_same_state(got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """Fails at the first tensor of two state dicts that differs in a bit."""
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16):
            assert_same_bits(to_numpy(got[name]), to_numpy(tensor.detach()), name)
        else:
            assert torch.equal(got[name], tensor), name


def whole_state(relay: Relay) -> dict[str, Any]:
    """Everything that a step can change: each EPS layer's sections and t, the buffers, the counters."""
    state: dict[str, Any] = {}
    for layer in relay.server.layers():
        kinds = (Section.P, Section.M, Section.V) if relay.server.layout(layer).trainable else (Section.P,)
        for kind in kinds:
            state[f"{layer}/{kind.value}"] = relay.server.read(layer, kind).result()
        state[f"{layer}/t"] = np.array(relay.server.applies(layer))
    state.update({f"buffer {name}": t.detach().cpu().clone().numpy() for name, t in relay.model.named_buffers()})
    return state


def assert_unchanged(before: Mapping[str, Any], after: Mapping[str, Any], but: Iterable[str] = ()) -> None:
    """Fails unless two `whole_state` are equal to the bit, ``but`` for those named."""
    assert before.keys() == after.keys()
    for name, value in before.items():
        if name not in but:
            assert value.tobytes() == after[name].tobytes(), f"{name} changed"
