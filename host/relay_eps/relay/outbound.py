"""Gradients on their way to the EPS, folded behind the device's work by a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray

from relay_eps.eps.contract import Ticket
from relay_eps.errors import NonFiniteGradient, RelayError
from relay_eps.relay.layers import EpsLayer
from relay_eps.relay.link import HostGradient, Link

#: Hands one EPS layer's gradient (flat, in host memory) to the server.
Send = Callable[[EpsLayer, NDArray[Any]], Ticket[None]]


@dataclass(frozen=True)
class Parcel:
    """A finished gradient: where it lies, what it belongs to, what is to be done with it."""

    layer: str
    flat: torch.Tensor
    parts: Sequence[EpsLayer]
    #: Which parts really got a gradient; the others are passed over.
    present: Sequence[bool]
    #: (micro-batch, largest magnitude) of each gradient in it.
    largest: Sequence[tuple[int, torch.Tensor]]
    send: Send
    #: Called once when the buffer may be used again.
    free: Callable[[], None]
    mark: Any = None
    #: Whether a value that is not finite refuses the gradient; deferred commit decides later.
    check: bool = True


@dataclass
class _InFlight:
    tickets: list[Ticket[None]]
    done: list[Callable[[], None]] = field(default_factory=list)

    def retire(self) -> None:
        try:
            for ticket in self.tickets:
                ticket.result()
        finally:
            for call in self.done:
                call()


class Outbound:
    """Takes parcels in order; the first failure stops all that come after it, until `reset`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="relay-eps-outbound")
        self._in_flight: deque[_InFlight] = deque()
        self._error: BaseException | None = None
        self._sent = threading.Event()

    @property
    def anything_sent(self) -> bool:
        """Whether the server has been asked to change any layer since `reset`."""
        return self._sent.is_set()

    def submit(self, parcel: Parcel) -> None:
        """Send a parcel behind the caller's back; raises what an earlier one failed with."""
        self.raise_failure()
        self._thread.submit(self._carry, parcel)

    def raise_failure(self) -> None:
        """Raise what a parcel failed with, if one did."""
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Wait until every parcel has been committed; raises the first failure."""
        self._thread.submit(self._retire, 0).result()
        self.raise_failure()

    def halt(self) -> bool:
        """Stop after a failure: nothing more is sent, what is under way ends. Returns `anything_sent`."""
        self._fail(RelayError("the step was given up"))
        self._thread.submit(self._retire, 0).result()
        return self.anything_sent

    def reset(self) -> None:
        """Forget failures: a new step begins."""
        self._error = None
        self._sent.clear()

    def close(self) -> None:
        """Finish what is under way and stop the thread."""
        self._thread.shutdown(wait=True)

    def _carry(self, parcel: Parcel) -> None:
        if self._error is not None:
            parcel.free()
            return
        try:
            # Two gradients may be in host memory at a time: one being folded, one arriving.
            self._retire(1)
            host = self._link.to_host(parcel.flat, parcel.mark)
        except BaseException as error:
            self._fail(error)
            parcel.free()
            return
        if not host.is_buffer:
            parcel.free()
        flight = _InFlight([], [host.release, parcel.free] if host.is_buffer else [host.release])
        self._in_flight.append(flight)
        try:
            self._commit(parcel, host, flight)
        except BaseException as error:
            self._fail(error)
        if host.is_buffer:
            self._retire(0)

    def _commit(self, parcel: Parcel, host: HostGradient, flight: _InFlight) -> None:
        self.raise_failure()
        if parcel.check:
            with self._link.outbound():
                refuse_non_finite(parcel.layer, parcel.largest)
        start = 0
        for eps, present in zip(parcel.parts, parcel.present, strict=True):
            if present:
                self._sent.set()
                flight.tickets.append(parcel.send(eps, host.array[start : start + eps.layout.size]))
            start += eps.layout.size

    def _retire(self, keep: int) -> None:
        while len(self._in_flight) > keep:
            try:
                self._in_flight.popleft().retire()
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error


def refuse_non_finite(layer: str, largest: Sequence[tuple[int, torch.Tensor]]) -> None:
    """Raise NonFiniteGradient, naming layer and micro-batch, if any of the magnitudes is NaN or infinite."""
    if not largest:
        return
    # All in one: on a device, each number read by itself is a wait of its own.
    values = torch.stack([magnitude for _, magnitude in largest]).tolist()
    for (micro, _), value in zip(largest, values, strict=True):
        if not value < float("inf"):
            raise NonFiniteGradient(
                f"the gradient of layer {layer!r} in micro-batch {micro} holds NaN or infinity: it was not folded; "
                "look at the data of that micro-batch, or lower the learning rate"
            )
