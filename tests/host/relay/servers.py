"""Servers that watch the relay, or that fail where a test wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps import SoftwareEPS
from relay_eps.eps.contract import Capabilities, EagerParamServer, Lease, Ticket
from relay_eps.eps.formats import Format
from relay_eps.eps.hyper import AdamHyper
from relay_eps.eps.layout import LayerLayout, Section


class ServerProxy(EagerParamServer):
    """Passes every call on to a `SoftwareEPS`, or to the server given; `call` sees the changing ones first."""

    def __init__(self, inner: EagerParamServer | None = None, *, wire: Format | str = Format.FP32) -> None:
        self.inner = inner if inner is not None else SoftwareEPS(wire=wire, threads=1)

    def call(self, what: str, layer: str, grad: NDArray[Any] | None, first: bool, scale: float) -> None:
        """About to pass on a fold, apply, fold_apply or accumulate."""

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def create(self, layout: LayerLayout) -> None:
        self.inner.create(layout)

    def remove(self, layer: str) -> None:
        self.inner.remove(layer)

    def layers(self) -> tuple[str, ...]:
        return self.inner.layers()

    def layout(self, layer: str) -> LayerLayout:
        return self.inner.layout(layer)

    def stored_bytes(self) -> int:
        return self.inner.stored_bytes()

    def fetch(self, layer: str, out: NDArray[Any]) -> Ticket[None]:
        return self.inner.fetch(layer, out)

    def lease(self, layer: str) -> Ticket[Lease]:
        return self.inner.lease(layer)

    def accumulate(self, layer: str, grad: NDArray[Any], *, first: bool) -> Ticket[None]:
        self.call("accumulate", layer, grad, first, 1.0)
        return self.inner.accumulate(layer, grad, first=first)

    def fold(
        self, layer: str, grad: NDArray[Any] | None, hyper: AdamHyper, *, first: bool, scale: float = 1.0
    ) -> Ticket[None]:
        self.call("fold", layer, grad, first, scale)
        return self.inner.fold(layer, grad, hyper, first=first, scale=scale)

    def apply(self, layer: str, hyper: AdamHyper) -> Ticket[None]:
        self.call("apply", layer, None, False, 1.0)
        return self.inner.apply(layer, hyper)

    def fold_apply(
        self, layer: str, grad: NDArray[Any] | None, hyper: AdamHyper, *, first: bool, scale: float = 1.0
    ) -> Ticket[None]:
        self.call("fold_apply", layer, grad, first, scale)
        return self.inner.fold_apply(layer, grad, hyper, first=first, scale=scale)

    def read(self, layer: str, section: Section, out: NDArray[Any] | None = None) -> Ticket[NDArray[Any]]:
        return self.inner.read(layer, section, out)

    def write(self, layer: str, section: Section, values: NDArray[Any]) -> Ticket[None]:
        return self.inner.write(layer, section, values)

    def applies(self, layer: str) -> int:
        return self.inner.applies(layer)

    def set_applies(self, layer: str, t: int) -> None:
        self.inner.set_applies(layer, t)

    def damaged(self, layer: str) -> str | None:
        return self.inner.damaged(layer)

    def synchronize(self) -> None:
        self.inner.synchronize()

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class Call:
    """A call that changes a layer; ``grad`` is a copy."""

    what: str
    layer: str
    grad: NDArray[Any] | None
    first: bool
    scale: float


class RecordingServer(ServerProxy):
    """Keeps every call that changes a layer, with the gradient that it got."""

    def __init__(self, inner: EagerParamServer | None = None, *, wire: Format | str = Format.FP32) -> None:
        super().__init__(inner, wire=wire)
        self.calls: list[Call] = []

    def call(self, what: str, layer: str, grad: NDArray[Any] | None, first: bool, scale: float) -> None:
        self.calls.append(Call(what, layer, None if grad is None else np.array(grad), first, scale))

    def take(self) -> list[Call]:
        """The calls since the last take."""
        calls, self.calls = self.calls, []
        return calls

    def take_gradients(self) -> dict[str, list[NDArray[Any]]]:
        """The gradients that came since the last take, in order, by the tensor's name in the model."""
        gradients: dict[str, list[NDArray[Any]]] = {}
        for call in self.take():
            if call.grad is not None:
                for slot in self.layout(call.layer).slots:
                    gradient = call.grad[slot.start : slot.stop].reshape(slot.spec.shape)
                    gradients.setdefault(slot.spec.name, []).append(gradient)
        return gradients


class FaultyServer(ServerProxy):
    """Raises ``error`` at the ``at``-th changing call (from 0) that ``fits``, once."""

    def __init__(
        self,
        error: BaseException,
        at: int = 0,
        fits: Callable[[str, str], bool] = lambda what, layer: True,
        inner: EagerParamServer | None = None,
    ) -> None:
        super().__init__(inner)
        self._error: BaseException | None = error
        self._left = at
        self._fits = fits

    def call(self, what: str, layer: str, grad: NDArray[Any] | None, first: bool, scale: float) -> None:
        if self._error is None or not self._fits(what, layer):
            return
        if self._left == 0:
            error, self._error = self._error, None
            raise error
        self._left -= 1


def section(server: EagerParamServer, name: str, which: Section) -> NDArray[Any]:
    """A tensor's part of a section, whatever layer it is in."""
    for layer in server.layers():
        for slot in server.layout(layer).slots:
            if slot.spec.name == name:
                return server.read(layer, which).result()[slot.start : slot.stop].reshape(slot.spec.shape)
    raise KeyError(name)
