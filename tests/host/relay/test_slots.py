"""Two slots stream the weights, and what is freed is full of NaN."""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from relay_eps.eps import Format, SoftwareEPS
from relay_eps.eps.contract import Ticket
from relay_eps.errors import ContractError, RelayEpsError
from relay_eps.relay import ModelledLink
from relay_eps.relay.slots import MemoryLink
from tests.host.relay.plans import Linked, linears
from tests.host.relay.servers import ServerProxy


def slots_of(linked: Linked) -> list[torch.Tensor]:
    assert isinstance(linked.link, MemoryLink)
    return [slot.memory for slot in linked.link._slots]


def test_h40_a_freed_slot_is_poisoned_and_its_parameters_are_gone() -> None:
    with Linked(linears(3, 4, 2), modelled=ModelledLink()) as linked:
        link, (plan, _) = linked.link, linked.plans
        assert not linked.holds(0)
        link.acquire(plan)
        assert linked.holds(0)
        kept = plan.trained[0].detach()
        link.release(plan)
        assert kept.isnan().all(), "a use after release must show"
        assert all(p.isnan().all() for p in plan.trained)
        assert all(memory.isnan().all() for memory in slots_of(linked))


def test_two_layers_fit_and_each_slot_is_used_again() -> None:
    with Linked(linears(3, 4, 2, 5, 1), modelled=ModelledLink()) as linked:
        link, plans = linked.link, linked.plans
        largest = max(linked.server.layout(plan.name).size for plan in plans)
        assert link.resident_bytes == 2 * 4 * largest
        for plan, following in pairwise(plans):
            link.acquire(plan)
            link.prefetch(following)
            assert linked.holds(plan.index)
            link.release(plan)
        link.acquire(plans[-1])
        assert linked.holds(len(plans) - 1)


def test_a_third_layer_is_a_mistake_of_the_engines() -> None:
    with Linked(linears(3, 4, 2, 5), modelled=ModelledLink()) as linked:
        linked.link.acquire(linked.plans[0])
        linked.link.prefetch(linked.plans[1])
        with pytest.raises(AssertionError, match="no weight slot is free for 2: 0, 1 hold them"):
            linked.link.prefetch(linked.plans[2])


@pytest.mark.parametrize("fmt", [Format.BF16, Format.FP16])
def test_weights_come_in_the_wire_format(fmt: Format) -> None:
    with Linked(linears(3, 4, 2), modelled=ModelledLink(), server=SoftwareEPS(wire=fmt, threads=1)) as linked:
        plan = linked.plans[0]
        linked.link.acquire(plan)
        for p, weight in zip(plan.trained, linked.weights[0], strict=True):
            assert p.dtype is linked.link.wire
            assert torch.equal(p.detach(), weight.to(linked.link.wire))
        assert linked.link.resident_bytes == 2 * 2 * 64


def test_a_gradient_leaves_as_a_copy_and_the_buffer_is_poisoned() -> None:
    with Linked(linears(3, 4, 2), modelled=ModelledLink()) as linked:
        buffer = torch.arange(4.0)
        host = linked.link.to_host(buffer, linked.link.mark())
        assert not host.is_buffer
        assert np.array_equal(host.array, np.arange(4.0))
        assert buffer.isnan().all()


class FailingFetch(ServerProxy):
    """Refuses to fetch layer "1"."""

    def fetch(self, layer: str, out: NDArray[Any]) -> Ticket[None]:
        if layer == "1":
            raise RelayEpsError("the wire is cut")
        return super().fetch(layer, out)


def test_a_failed_fetch_reaches_whoever_needs_the_layer_and_the_slots_are_free_after_an_abort() -> None:
    with Linked(linears(3, 4, 2), modelled=ModelledLink(), server=FailingFetch()) as linked:
        link, plans = linked.link, linked.plans
        link.acquire(plans[0])
        link.prefetch(plans[1])
        with pytest.raises(RelayEpsError, match="wire is cut"):
            link.acquire(plans[1])
        link.abort()
        link.acquire(plans[0])
        assert linked.holds(0)


def test_a_transfer_takes_at_least_the_time_that_the_link_needs() -> None:
    with Linked(linears(30, 40, 2), modelled=ModelledLink(bytes_per_second=1e5)) as linked:
        plan = linked.plans[0]
        nbytes = linked.server.layout(plan.name).size * 4
        started = time.perf_counter()
        linked.link.acquire(plan)
        assert time.perf_counter() - started >= nbytes / 1e5
        buffer = torch.zeros(2000)
        started = time.perf_counter()
        linked.link.to_host(buffer, None)
        assert time.perf_counter() - started >= buffer.nbytes / 1e5


def test_h39_a_prefetch_works_while_the_caller_goes_on() -> None:
    with Linked(linears(30, 40, 2), modelled=ModelledLink(bytes_per_second=1e5)) as linked:
        assert isinstance(linked.link, MemoryLink)
        linked.link.prefetch(linked.plans[0])
        filled = linked.link._slots[0].filled
        assert isinstance(filled, Future)
        assert not filled.done()
        linked.link.acquire(linked.plans[0])
        assert linked.holds(0)


def test_delays_are_random_and_can_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def delays(seed: int) -> list[float]:
        slept: list[float] = []
        monkeypatch.setattr("relay_eps.relay.slots.time.sleep", slept.append)
        monkeypatch.setattr("relay_eps.relay.slots.time.perf_counter", lambda: 0.0)
        with Linked(linears(3, 4, 2), modelled=ModelledLink(jitter=1.0, seed=seed)) as linked:
            for _ in range(5):
                linked.link.acquire(linked.plans[0])
                linked.link.release(linked.plans[0])
        return slept

    assert delays(1) == delays(1)
    assert delays(1) != delays(2)
    assert all(0 < delay < 1 for delay in delays(3))


@pytest.mark.parametrize("values", [{"bytes_per_second": 0}, {"bytes_per_second": float("nan")}, {"jitter": -1.0}])
def test_a_link_that_cannot_be_is_refused(values: Any) -> None:
    with pytest.raises(ContractError, match="needs a speed above 0 and a jitter of at least 0"):
        ModelledLink(**values)
