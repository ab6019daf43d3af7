"""Parcels are committed in order by a thread of its own; the first failure stops what comes after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from relay_eps.eps.contract import Ticket
from relay_eps.errors import NonFiniteGradient
from relay_eps.relay import ModelledLink
from relay_eps.relay.layers import EpsLayer
from relay_eps.relay.outbound import Outbound, Parcel
from tests.host.relay.plans import Linked, linears


class Done(Ticket[None]):
    """A call that is over; its result raises ``error``."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> None:
        if self._error is not None:
            raise self._error


class Boom(Exception):
    pass


class Desk:
    """Sends parcels, and notes what becomes of them."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.outbound = Outbound(linked.link)
        self.sent: list[tuple[str, int]] = []
        self.freed: list[int] = []
        #: Set when the server is first asked for anything.
        self.asked = threading.Event()

    def parcel(
        self,
        number: int,
        *,
        fails: BaseException | None = None,
        ticket: BaseException | None = None,
        magnitude: float = 1.0,
        check: bool = True,
        present: bool = True,
        wait: threading.Event | None = None,
    ) -> Parcel:
        (eps,) = self.linked.plans[0].eps

        def send(layer: EpsLayer, gradient: NDArray[Any]) -> Ticket[None]:
            self.asked.set()
            if wait is not None:
                wait.wait(10)
            if fails is not None:
                raise fails
            self.sent.append((layer.name, int(gradient[0])))
            return Done(ticket)

        flat = torch.full((eps.layout.size,), float(number))
        largest = [(3, torch.tensor(1.0)), (number, torch.tensor(magnitude))]
        return Parcel("a", flat, (eps,), [present], largest, send, lambda: self.freed.append(number), None, check)


@pytest.fixture(params=[None, ModelledLink()], ids=["leased", "slots"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    with Linked(linears(2, 2), modelled=request.param) as linked:
        made = Desk(linked)
        yield made
        made.outbound.close()


def test_parcels_are_committed_in_order_and_their_buffers_freed_once(desk: Desk) -> None:
    for number in range(5):
        desk.outbound.submit(desk.parcel(number))
    desk.outbound.drain()
    assert desk.sent == [("0", number) for number in range(5)]
    assert sorted(desk.freed) == list(range(5))
    assert desk.outbound.anything_sent


def test_a_part_without_a_gradient_is_passed_over(desk: Desk) -> None:
    desk.outbound.submit(desk.parcel(0, present=False))
    desk.outbound.drain()
    assert (desk.sent, desk.freed, desk.outbound.anything_sent) == ([], [0], False)


@pytest.mark.parametrize("how", ["fails", "ticket"])
def test_after_a_failure_nothing_more_is_sent_until_the_reset(desk: Desk, how: str) -> None:
    gate = threading.Event()
    desk.outbound.submit(desk.parcel(0, wait=gate))
    desk.outbound.submit(desk.parcel(1, **{how: Boom("it failed")}))  # type: ignore[arg-type]
    desk.outbound.submit(desk.parcel(2))
    desk.outbound.submit(desk.parcel(3))
    gate.set()
    with pytest.raises(Boom, match="it failed"):
        desk.outbound.drain()
    with pytest.raises(Boom):
        desk.outbound.submit(desk.parcel(4))
    # A bad ticket is met when its turn to be waited for comes; one parcel may have gone out behind it.
    assert ("0", 3) not in desk.sent
    assert sorted(desk.freed) == [0, 1, 2, 3]
    assert desk.outbound.halt() is True
    desk.outbound.reset()
    assert not desk.outbound.anything_sent
    desk.outbound.submit(desk.parcel(5))
    desk.outbound.drain()
    assert desk.sent[-1] == ("0", 5)


@pytest.mark.parametrize("magnitude", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_not_sent_and_named(desk: Desk, magnitude: float) -> None:
    desk.outbound.submit(desk.parcel(7, magnitude=magnitude))
    with pytest.raises(NonFiniteGradient, match="layer 'a' in micro-batch 7 holds NaN or infinity: it was not folded"):
        desk.outbound.drain()
    assert (desk.sent, desk.freed, desk.outbound.anything_sent) == ([], [7], False)


def test_deferred_commit_looks_later(desk: Desk) -> None:
    desk.outbound.submit(desk.parcel(7, magnitude=float("nan"), check=False))
    desk.outbound.drain()
    assert desk.sent == [("0", 7)]


def test_halt_ends_what_is_under_way_and_tells_whether_anything_was_sent(desk: Desk) -> None:
    gate = threading.Event()
    desk.outbound.submit(desk.parcel(0, wait=gate))
    desk.outbound.submit(desk.parcel(1))
    assert desk.asked.wait(10)
    threading.Timer(0.05, gate.set).start()
    assert desk.outbound.halt() is True
    assert desk.sent == [("0", 0)]
    assert sorted(desk.freed) == [0, 1]
    desk.outbound.reset()
    assert desk.outbound.halt() is False


def test_a_buffer_that_the_server_reads_is_freed_only_when_it_is_done() -> None:
    with Linked(nn.Sequential(nn.Linear(2, 2))) as linked:
        desk = Desk(linked)
        gate = threading.Event()

        class Later(Done):
            def result(self, timeout: float | None = None) -> None:
                gate.wait(10)

        desk.outbound.submit(replace(desk.parcel(0), send=lambda eps, gradient: Later()))
        assert desk.freed == []
        gate.set()
        desk.outbound.drain()
        assert desk.freed == [0]
        desk.outbound.close()


def test_an_error_on_the_way_to_the_host_stops_the_parcel(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(buffer: torch.Tensor, mark: Any) -> Any:
        raise Boom("no way")

    monkeypatch.setattr(desk.linked.link, "to_host", broken)
    desk.outbound.submit(desk.parcel(0))
    with pytest.raises(Boom, match="no way"):
        desk.outbound.drain()
    assert (desk.sent, desk.freed) == ([], [0])


def test_the_array_is_the_gradient(desk: Desk) -> None:
    got: list[NDArray[Any]] = []

    def send(eps: EpsLayer, gradient: NDArray[Any]) -> Ticket[None]:
        got.append(np.array(gradient))
        return Done()

    desk.outbound.submit(replace(desk.parcel(3), send=send))
    desk.outbound.drain()
    assert np.array_equal(got[0], np.full(64, 3, np.float32))
