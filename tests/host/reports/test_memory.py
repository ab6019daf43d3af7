"""Memory: what users of the nearest systems reported, and what happens here instead.

The names follow public reports, in the order in which this project lists them. H26: PyTorch issue 95823, vLLM issue
56410. H27: unsloth-zoo pull request 1257, WSL issue 14078. H28: transformers issue 17258, DeepSpeed issue 1111. H29:
DeepSpeed issue 522, accelerate pull request 4175. H30: DeepSpeed issue 3054, ColossalAI issue 2246. What needs a real
card is in docs/decisions.md.
"""

from __future__ import annotations

import gc
import logging
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay_eps.eps import Format, LayerLayout, SoftwareEPS, TensorSpec
from relay_eps.eps.layout import Section
from relay_eps.eps.memory import aligned_empty
from relay_eps.errors import ContractError
from relay_eps.relay import ModelledLink, Relay, pinned
from relay_eps.relay.pinned import pinned_empty
from tests.host.relay.following import make_relay, take_step, whole_state
from tests.host.relay.models import MLP

MIB = 2**20
PROC = Path("/proc/self")
needs_proc = pytest.mark.skipif(not (PROC / "clear_refs").exists(), reason="reads the process's memory from /proc")

#: Sections of these sizes would take nearly twice their bytes if they were rounded up to a power of two.
JUST_OVER = (2**20 + 32, 2**19 + 1, 2**18 + 3)


def status(field: str) -> int:
    """A field of this process's memory, in bytes: VmRSS, or VmHWM, its peak."""
    lines = (PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak_over_now(action: Callable[[], Any]) -> int:
    """By how much the process's memory rose above what it is now while ``action`` ran."""
    gc.collect()
    (PROC / "clear_refs").write_text("5")  # the peak is forgotten
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


# --- H26


@needs_proc
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("deferred", [False, True])
def test_H26_accounted_bytes_are_what_the_process_holds(wire: str, deferred: bool) -> None:
    with SoftwareEPS(threads=1, wire=wire) as server:
        gc.collect()
        before = status("VmRSS")
        for number, size in enumerate(JUST_OVER):
            layout = LayerLayout(f"layer {number}", (TensorSpec(f"w{number}", (size,)),))
            server.create(layout)
            if deferred:
                # A mapping of its own: malloc may keep what the test frees, and the process would hold it.
                gradient = aligned_empty(layout.nbytes(Format.FP32)).view(np.float32)
                server.accumulate(layout.name, gradient, first=True).result()
                del gradient
        server.synchronize()
        gc.collect()
        held = status("VmRSS") - before
        assert server.stored_bytes() >= sum(JUST_OVER) * (12 + 2 * (wire == "bf16") + 4 * deferred)
        assert abs(held - server.stored_bytes()) < 2 * MIB


class Cudart:
    """Stands in for CUDA's runtime: locks memory until ``limit`` bytes are locked, and then refuses."""

    OUT_OF_MEMORY = 2

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self.locked: dict[int, int] = {}
        self.refused = 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert address % mmap.PAGESIZE == 0
        assert flags == 0
        if sum(self.locked.values()) + nbytes > self.limit:
            self.refused += 1
            return self.OUT_OF_MEMORY
        self.locked[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Cudart:
    """A runtime that locks whatever is asked for."""
    stand_in = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: stand_in)
    monkeypatch.setattr(pinned, "_said", set())
    return stand_in


@pytest.mark.parametrize("more", [{}, {"max_grad_norm": 0.1}], ids=["eager", "deferred"])
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_H26_pinned_memory_is_locked_byte_for_byte_and_given_back(
    cudart: Cudart, wire: str, more: dict[str, Any]
) -> None:
    server = SoftwareEPS(threads=1, wire=wire, allocate=pinned_empty)
    with make_relay(MLP, server=server, micro_batch=4, **more) as relay:
        take_step(relay, MLP, 0, 12)
        assert sum(cudart.locked.values()) == server.stored_bytes()
        del relay
    server.close()
    del server
    gc.collect()
    assert not cudart.locked, "what is freed is unlocked"


@pytest.mark.parametrize("nbytes", [1, 63, 4095, 4096, 4097, MIB + 1, 2**25 + 64])
def test_H26_no_size_is_rounded_to_a_power_of_two(cudart: Cudart, nbytes: int) -> None:
    array = pinned_empty(nbytes)
    view = array[: nbytes // 2]
    assert array.shape == (nbytes,)
    assert list(cudart.locked.values()) == [nbytes]
    del array
    gc.collect()
    assert cudart.locked, "a view keeps the memory locked"
    del view
    gc.collect()
    assert not cudart.locked


# --- H27


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_H27_where_no_more_memory_can_be_locked_pageable_memory_serves_and_that_is_said_once(
    cudart: Cudart, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    def train(allocate: Callable[[int], Any]) -> tuple[list[float], dict[str, Any]]:
        server = SoftwareEPS(threads=1, allocate=allocate)
        with server, make_relay(MLP, server=server, micro_batch=4, max_grad_norm=0.1) as relay:
            return [take_step(relay, MLP, step, 12).loss for step in range(2)], whole_state(relay)

    losses, state = train(aligned_empty)
    cudart.limit = share * sum(value.nbytes for name, value in state.items() if name.endswith(("/p", "/m", "/v")))
    with caplog.at_level(logging.INFO):
        short_losses, short_state = train(pinned_empty)
    assert cudart.refused > 1
    assert bool(cudart.locked or share == 0.0 or cudart.refused)
    assert short_losses == losses
    assert {n: v.tobytes() for n, v in short_state.items()} == {n: v.tobytes() for n, v in state.items()}
    (said,) = [record.getMessage() for record in caplog.records]
    assert "page-lock" in said
    assert "host memory" in said
    assert "ulimit -l" in said
    assert "GPU" not in said


@pytest.mark.parametrize("error", [MemoryError(), OSError("no pages"), RuntimeError("cannot allocate")])
@pytest.mark.parametrize("left", [0, 1, 5])
def test_H27_running_out_of_host_memory_says_so_and_gives_the_weights_back(error: Exception, left: int) -> None:
    def allocate(nbytes: int) -> Any:
        nonlocal left
        if not left:
            raise error
        left -= 1
        return aligned_empty(nbytes)

    model, wanted = MLP.make(), MLP.make().state_dict()
    with SoftwareEPS(threads=1, allocate=allocate) as server:
        with pytest.raises(ContractError, match=r"layer '\d' cannot be held: its [\d,]+ bytes .*more memory"):
            Relay(model, server=server)
        assert server.layers() == ()
        assert server.stored_bytes() == 0
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


# --- H28

DEPTH, WIDTH = 16, 512
LAYER = 12 * WIDTH * WIDTH  #: p, m and v of a layer: 3 MiB


def deep(depth: int = DEPTH) -> nn.Sequential:
    """Equal layers, 1 MiB of weights each."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth)))


@needs_proc
def test_H28_constructing_saving_and_resuming_go_layer_by_layer(tmp_path: Path) -> None:
    # Beside the store itself: two layers, whatever the depth; all states at once would be sixteen.
    slack = 3 * MIB
    relays: list[Relay] = []
    model = deep()
    rose = peak_over_now(lambda: relays.append(Relay(model)))
    store = relays[0].server.stored_bytes()
    assert store == DEPTH * LAYER
    assert rose < store + 2 * LAYER + slack
    relays[0].step(torch.ones(2, WIDTH), torch.zeros(2, WIDTH), F.mse_loss)
    assert peak_over_now(lambda: relays[0].save(tmp_path)) < 2 * LAYER + slack
    expected = relays.pop().state_dict()
    relays.append(Relay(deep()))
    assert peak_over_now(lambda: relays[0].load(tmp_path)) < 2 * LAYER + slack
    assert all(torch.equal(value, expected[name]) for name, value in relays[0].state_dict().items())
    relays[0].close()


# --- H29, H30

MICRO = 8


def peak_of_a_step(depth: int, micro_batches: int, width: int = 32, **settings: Any) -> list[int]:
    """Device bytes at their peak in three steps after the first."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    with Relay(nn.Sequential(*layers), micro_batch=MICRO, **settings) as relay:
        inputs = torch.randn(MICRO * micro_batches, width)
        relay.step(inputs, inputs, F.mse_loss)
        peaks = []
        for _ in range(3):
            with relay.measure_device_peak() as peak:
                relay.step(inputs, inputs, F.mse_loss)
            peaks.append(peak.bytes)
        return peaks


def scalars(layers: int, micro_batches: int) -> int:
    """Bytes of single numbers that a step keeps: losses, and for each gradient its largest magnitude and its norms."""
    return 4 * micro_batches + 4 * layers * (micro_batches + 4)


WAYS: dict[str, dict[str, Any]] = {
    "exact": {},
    "exact, slots": {"link": ModelledLink()},
    "adama, slots": {"link": ModelledLink(), "mode": "adama"},
    "deferred, slots": {"link": ModelledLink(), "max_grad_norm": 1.0},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_H29_an_offloaded_stash_takes_depth_and_batch_out_of_the_devices_memory(way: dict[str, Any]) -> None:
    (shallow, deeper), (few, many) = (
        [peak_of_a_step(depth, 3, stash="host", **way)[-1] for depth in (4, 16)],
        [peak_of_a_step(6, count, stash="host", **way)[-1] for count in (2, 12)],
    )
    assert abs(deeper - shallow) <= scalars(12, 3)
    assert many - few <= scalars(6, 10)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_H29_what_the_stash_takes_on_the_device_is_what_offloading_saves(way: dict[str, Any]) -> None:
    micro_batches, width = 3, 32
    input_bytes = 4 * MICRO * micro_batches * width
    device = [peak_of_a_step(depth, micro_batches, width, **way)[-1] for depth in (4, 16)]
    grown = device[1] - device[0]
    assert abs(grown - 12 * input_bytes) <= scalars(12, micro_batches), "an input a layer and micro-batch, no more"
    host = peak_of_a_step(16, micro_batches, width, stash="host", **way)[-1]
    assert device[1] - host >= 12 * input_bytes - scalars(12, micro_batches)


@pytest.mark.parametrize("stash", ["device", "host"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_H30_the_budget_that_the_documents_state_holds_and_is_flat(way: dict[str, Any], stash: str) -> None:
    depth, micro_batches, width = 8, 4, 64
    weights = 4 * (width * width + width)
    activation = 4 * MICRO * width
    kept = depth * micro_batches if stash == "device" else 1
    budget = {
        "two weight slots": 2 * weights if "link" in way else 0,
        "two gradient buffers": 2 * weights,
        "the gradient as autograd makes it": weights,
        "stash": kept * activation,
        "boundary gradients": (micro_batches if stash == "device" else 1) * activation,
        "one layer's activations and their gradients": 6 * activation,
        "scalars": scalars(depth, micro_batches),
    }
    peaks = peak_of_a_step(depth, micro_batches, width, stash=stash, **way)
    assert max(peaks) <= sum(budget.values()), budget
    assert max(peaks) - min(peaks) <= scalars(depth, micro_batches), "flat from step to step"


def test_H30_no_choice_is_made_for_the_user() -> None:
    # What "auto" elsewhere guesses is named here: the stash and the micro-batch decide, and nothing else does.
    one, two = (peak_of_a_step(4, 2, stash=stash)[-1] for stash in ("device", "device"))
    assert one == two
    with pytest.raises(Exception, match="'device' or 'host'"):
        make_relay(MLP, stash="auto")


def test_H26_the_bytes_that_are_resident_between_steps_are_all_slots_and_buffers() -> None:
    for wire, itemsize in (("fp32", 4), ("bf16", 2)):
        with Relay(deep(2), link=ModelledLink(), wire=wire) as relay:
            elements = WIDTH * WIDTH
            assert relay.resident_bytes == 2 * elements * itemsize + 2 * elements * 4
            weights = relay.server.read("0", Section.P).result()
            assert weights.size == elements
