"""Device bytes: what is counted, and that they do not grow with what the relay is there to hold."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay_eps.relay import ModelledLink, Relay
from relay_eps.relay.memory import measure, on_host
from tests.host.relay.following import make_relay, take_step
from tests.host.relay.models import TIED
from tests.host.relay.plans import linears

CPU = torch.device("cpu")


# --- counting


def test_the_peak_is_that_of_the_storages_alive_at_once() -> None:
    with measure(CPU, 100) as peak:
        a = torch.zeros(250)
        b = a + 1
        del a
        c = b.view(5, 50)[1]
        del b
        d = torch.zeros(100)
    assert peak.bytes == 100 + 2000
    del c, d


def test_storages_made_before_are_not_counted_nor_changes_in_place() -> None:
    a = torch.zeros(1000)
    with measure(CPU, 0) as peak:
        a += 1
        a.view(10, 100).t()
    assert peak.bytes == 0


def test_what_stands_for_host_memory_is_not_counted() -> None:
    with measure(CPU, 0) as peak:
        with on_host():
            kept = torch.zeros(1000)
        small = torch.zeros(1)
    assert peak.bytes == 4
    del kept, small


# --- a step's device bytes

WIDTH, MICRO = 32, 4
#: Each micro-batch's loss, and the magnitudes of gradients under way, are a number each; how many of these are alive
#: at the peak depends on how far the thread behind the backward is.
SCALARS = 128


def peak_of(depth: int, n: int = 8, **settings: Any) -> int:
    """Device peak of a second step of ``depth`` equal layers."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth)))
    x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(0))
    with Relay(model, micro_batch=MICRO, **{"link": ModelledLink(), **settings}) as relay:
        relay.step(x, x, F.mse_loss)
        with relay.measure_device_peak() as peak:
            relay.step(x, x, F.mse_loss)
    return peak.bytes


@pytest.mark.parametrize("mode", ["exact", "adama"])
def test_h29_with_the_stash_on_the_host_the_peak_does_not_grow_with_depth(mode: str) -> None:
    peaks = [peak_of(depth, stash="host", mode=mode) for depth in (3, 6, 24)]
    assert max(peaks) - min(peaks) <= SCALARS


def test_h29_nor_with_the_number_of_micro_batches() -> None:
    assert abs(peak_of(4, 8, stash="host") - peak_of(4, 32, stash="host")) <= SCALARS


def test_h29_with_the_stash_on_the_device_each_layer_adds_its_inputs_and_no_weights() -> None:
    stash = 8 * WIDTH * 4
    for depth in (4, 8):
        assert abs(peak_of(2 * depth) - peak_of(depth) - depth * stash) <= SCALARS


def test_the_gradient_of_the_model_is_never_whole_on_the_device() -> None:
    depth = 24
    layer = (WIDTH * WIDTH + WIDTH) * 4
    assert peak_of(depth, stash="host") < 8 * layer < depth * layer


def test_slots_and_gradient_buffers_are_the_resident_bytes() -> None:
    largest = (40 * 30 + 16 + 64) * 4
    with Relay(linears(30, 40, 5), link=ModelledLink()) as relay:
        assert relay.resident_bytes == 2 * largest + 2 * largest
        assert relay.resident_bytes == 4 * 4 * relay.server.layout("0").size
    with Relay(linears(30, 40, 5)) as relay:
        assert relay.resident_bytes == 2 * 4 * relay.server.layout("0").size


def test_adama_keeps_a_buffer_for_each_micro_batch_of_a_tied_tensor() -> None:
    sizes = {}
    for mode in ("exact", "adama"):
        with make_relay(TIED, micro_batch=4, mode=mode) as relay:
            before = relay.resident_bytes
            take_step(relay, TIED, 0, 12)
            sizes[mode] = (relay.resident_bytes - before) / (4 * relay.server.layout("tied:embed.weight").size)
            take_step(relay, TIED, 1, 12)
    assert sizes == {"exact": 1, "adama": 3}


@pytest.mark.parametrize("settings", [{}, {"link": ModelledLink(), "stash": "host"}, {"max_grad_norm": 1.0}], ids=str)
def test_memory_is_flat_from_step_to_step(settings: dict[str, Any]) -> None:
    def tensors() -> int:
        gc.collect()
        # Not isinstance: it asks the objects, and some of torch's own answer with a warning.
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    counts, peaks = [], []
    with make_relay(TIED, micro_batch=4, **settings) as relay:
        for step in range(5):
            with relay.measure_device_peak() as peak:
                take_step(relay, TIED, step, 12)
            counts.append(tensors())
            peaks.append(peak.bytes)
    assert len(set(counts[1:])) == 1
    assert max(peaks[1:]) - min(peaks[1:]) <= SCALARS


def test_the_server_holds_12_bytes_a_parameter_and_16_when_updates_wait() -> None:
    for settings, bytes_each in (({}, 12), ({"max_grad_norm": 1.0}, 16)):
        with Relay(linears(64, 64, 64), **settings) as relay:  # type: ignore[arg-type]
            x = torch.ones(2, 64)
            relay.step(x, x, F.mse_loss)
            assert relay.server.stored_bytes() == bytes_each * 2 * (64 * 64 + 64)
