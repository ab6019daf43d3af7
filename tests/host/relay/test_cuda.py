"""The link to a CUDA device: on stand-ins everywhere, and on the device itself where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from relay_eps.eps.contract import Capabilities, EagerParamServer
from relay_eps.relay import Relay, build
from relay_eps.relay.cuda import CudaLink, _dense, _Pieces
from tests.host.relay.cuda_stand_in import StandIn, Stream
from tests.host.relay.following import follow, make_reference
from tests.host.relay.models import CASES, TIED, WATCHED, Case, untied
from tests.host.relay.plans import Linked, linears
from tests.host.relay.servers import RecordingServer, ServerProxy

CPU = torch.device("cpu")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"stash": "host", "mode": "adama"},
    {"stash": "host", "max_grad_norm": 0.1},
]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Stand-ins for the CUDA runtime; links are made for host memory that plays the device's."""
    monkeypatch.setattr(build, "make_link", lambda server, device, model: CudaLink(server, device))
    return StandIn(monkeypatch)


class NoLeases(ServerProxy):
    """A server that only copies its weights out."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(**{**self.inner.capabilities.__dict__, "leases": False})

    def lease(self, layer: str) -> Any:
        raise AssertionError("this server does not lease")


def linked(model: nn.Module, server: EagerParamServer | None = None) -> Linked:
    """A model behind a CUDA link."""
    made = Linked(model, server=server, make=lambda server: CudaLink(server, CPU))
    assert isinstance(made.link, CudaLink)
    return made


# --- on stand-ins: the code path, and what waits for what


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("case", [*CASES[:3], *CASES[6:9], TIED], ids=str)
def test_the_whole_relay_runs_over_this_link(case: Case, settings: dict[str, Any], cuda: StandIn) -> None:
    more = {k: v for k, v in settings.items() if k != "stash"}
    reference = make_reference(*untied(case), micro_batch=5, **more) if case is TIED else None
    follow(case, micro_batch=5, sizes=(12, 12, 7), reference=reference, **settings)


def test_a_fetch_waits_for_the_slots_last_user_and_the_compute_for_the_fetch(cuda: StandIn) -> None:
    with linked(linears(3, 4, 2, 5)) as made:
        link, plans = made.link, made.plans
        assert isinstance(link, CudaLink)
        zeroed = {slot.event for slot in link._slots}
        link.acquire(plans[0])
        assert made.holds(0)
        slot = next(s for s in link._slots if s.plan is plans[0])
        assert slot.event.after & zeroed, "the first fetch comes after the slot was made"
        assert slot.event in cuda.computing.after
        link.release(plans[0])
        released = slot.event
        assert released.stream is cuda.computing
        link.acquire(plans[1])
        assert slot.plan is plans[1]
        assert released in slot.event.after
        assert slot.event in cuda.computing.after


@pytest.mark.parametrize("make", [None, NoLeases])
def test_servers_with_and_without_leases_bring_the_weights(make: Any, cuda: StandIn) -> None:
    with linked(linears(3, 4, 2), make and make()) as made:
        for plan in made.plans:
            made.link.acquire(plan)
            assert made.holds(plan.index)
            made.link.release(plan)
            assert not made.holds(plan.index)


def test_a_gradient_leaves_after_its_mark_into_two_locked_arrays_of_the_largest_layers_size(cuda: StandIn) -> None:
    with linked(linears(30, 40, 5)) as made:
        largest = made.server.layout("0").size * 4
        assert sorted(cuda.runtime.locked.values()) == [largest, largest]
        mark = made.link.mark()
        first, second = (made.link.to_host(torch.full((7,), float(i)), mark) for i in range(2))
        assert isinstance(made.link, CudaLink)
        pushing: Any = made.link._pushing
        assert mark in pushing.after
        assert (first.is_buffer, first.array[0], second.array[0]) == (False, 0, 1)
        first.release()
        third = made.link.to_host(torch.full((7,), 2.0), mark)
        assert third.array[0] == 2
        assert second.array[0] == 1
        assert third.array.ctypes.data == first.array.ctypes.data


def test_a_staging_array_comes_back_after_an_error(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with linked(linears(3, 4, 2)) as made:
        assert isinstance(made.link, CudaLink)
        mark = made.link.mark()
        with monkeypatch.context() as broken:
            broken.setattr(made.link, "_pushing", None)
            for _ in range(3):
                with pytest.raises(AttributeError):
                    made.link.to_host(torch.zeros(4), mark)
        assert made.link.to_host(torch.ones(4), mark).array[0] == 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(2, 3, 4),
        torch.arange(24.0).view(4, 6).t(),
        torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(1, 3).expand(5, 3),
        torch.arange(24.0)[::2],
        torch.zeros(0, 3),
        torch.tensor(True),
        torch.arange(5).bfloat16(),
    ],
    ids=str,
)
def test_an_offloaded_activation_comes_back_with_its_values_and_strides(tensor: torch.Tensor, cuda: StandIn) -> None:
    with linked(linears(3, 4, 2)) as made:
        handle = made.link.offload(tensor)
        back = made.link.load(handle)
        assert handle.event in cuda.computing.after, "the copy back waits for the copy out"
        assert torch.equal(back, tensor)
        assert back.dtype == tensor.dtype
        assert back.stride() == torch.empty_like(tensor).stride()
        made.link.forget(handle)


def test_offloading_waits_for_the_compute_and_for_the_last_reader_of_its_memory(cuda: StandIn) -> None:
    with linked(linears(3, 4, 2)) as made:
        assert isinstance(made.link, CudaLink)
        computed = cuda.computing.record_event()
        handle: Any = made.link.offload(torch.zeros(100))
        assert computed in handle.event.after
        made.link.load(handle)
        read = cuda.computing.record_event()
        made.link.forget(handle)
        again: Any = made.link.offload(torch.ones(90))
        assert again.memory.ctypes.data == handle.memory.ctypes.data
        assert read in again.event.after


def test_pieces_are_used_again_and_do_not_pile_up(cuda: StandIn) -> None:
    pieces, event = _Pieces(CPU), Stream().record_event()
    first, nothing = pieces.take(1000)
    assert nothing is None
    pieces.give(first, event)  # type: ignore[arg-type]
    assert pieces.take(900)[0] is first
    pieces.give(first, event)  # type: ignore[arg-type]
    larger, _ = pieces.take(2000)
    assert larger.nbytes == 2000
    del first
    assert list(cuda.runtime.locked.values()) == [2000], "the smaller one made room"
    assert pieces.take(0)[0].nbytes == 1


def test_abort_frees_slots_and_what_is_leaving(cuda: StandIn) -> None:
    with linked(linears(3, 4, 2)) as made:
        made.link.acquire(made.plans[0])
        made.link.prefetch(made.plans[1])
        handle = made.link.offload(torch.zeros(3))
        made.link.abort()
        assert handle.event in cuda.computing.after
        for plan in made.plans:
            made.link.acquire(plan)
            assert made.holds(plan.index)
            made.link.release(plan)


def test_h27_where_pages_cannot_be_locked_plain_memory_serves_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("relay_eps.relay.pinned._said", set())
    StandIn(monkeypatch, lock_code=2)
    with linked(linears(3, 4, 2)) as made:
        made.link.acquire(made.plans[0])
        assert made.holds(0)
    (said,) = [r.getMessage() for r in caplog.records]
    assert "refused to page-lock" in said
    assert "pageable memory is used" in said


def test_dense_strides_are_kept_and_gaps_are_not() -> None:
    channels_last = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert _dense(channels_last) is channels_last
    assert _dense(torch.zeros(10)[::2]).stride() == (1,)


# --- on a device

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@needs_cuda
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_a_device_gradients_and_weights_are_plain_pytorchs(case: Case, settings: dict[str, Any]) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    more = {k: v for k, v in settings.items() if k != "stash"}
    plain = make_reference(case, case.make().to(device), micro_batch=5, device=device, **more)
    follow(case, micro_batch=5, sizes=(12, 12, 7), reference=plain, device=device, **settings)


@needs_cuda
def test_on_a_device_gradients_of_inputs_come_back_there() -> None:
    with RecordingServer() as server, Relay(WATCHED.make(), server=server, device="cuda", micro_batch=4) as relay:
        batch = WATCHED.batch(0, 8)
        batch.inputs[0].requires_grad_()
        result = relay.step(batch.inputs, batch.targets, WATCHED.loss, side=batch.side)
        assert result.input_gradients[0][0].device == relay.device


@needs_cuda
def test_on_a_device_memory_is_flat_from_step_to_step() -> None:
    with Relay(linears(256, 256, 256, 256), device="cuda", micro_batch=8, stash="host") as relay:
        x = torch.randn(32, 256)
        peaks = []
        for _ in range(6):
            with relay.measure_device_peak() as peak:
                relay.step(x, x, nn.functional.mse_loss)
            peaks.append(peak.bytes)
    assert len(set(peaks[2:])) == 1
    assert np.isfinite(peaks).all()
