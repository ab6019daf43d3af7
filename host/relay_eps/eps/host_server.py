"""The EPS in host memory: storage, checks and order around an `Arithmetic`, the same for every arithmetic."""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.arithmetic import Arithmetic, GoldenArithmetic
from relay_eps.eps.checks import (
    check_array,
    check_gradient,
    gradient,
    refuse_frozen,
    refuse_leased,
    refuse_without_sum,
    scalars,
    section_of,
    stored_section,
)
from relay_eps.eps.contract import Capabilities, EagerParamServer, Lease, Ticket
from relay_eps.eps.formats import Format
from relay_eps.eps.host_layer import HostLayer
from relay_eps.eps.hyper import AdamHyper, ApplyScalars, FoldScalars, scalar
from relay_eps.eps.layout import LayerLayout, Section, SectionType
from relay_eps.eps.memory import aligned_empty
from relay_eps.eps.queues import Dispatcher
from relay_eps.eps.storage import Allocate, LayerStore
from relay_eps.errors import ContractError, ServerClosed

T = TypeVar("T")

_FP32 = (Format.FP32.carrier,)


class HostEPS(EagerParamServer):
    """An eager parameter server in host memory.

    One dispatcher thread runs the calls; ``arithmetic`` may use threads of its own inside a call, belongs to the server
    from now on, and is closed with it. ``allocate`` makes the sections' memory, pinned for a GPU for instance (default:
    `relay_eps.eps.memory.aligned_empty`). Layers are damaged only by a failure of the arithmetic itself; everything
    else is checked at the call.

    After `close`, calls raise ServerClosed. A server that is forgotten closes itself.
    """

    # Closures that go to the dispatcher must not refer to self: a forgotten server could then never be collected.

    def __init__(
        self, arithmetic: Arithmetic, *, name: str, wire: Format | str = Format.FP32, allocate: Allocate | None = None
    ) -> None:
        self._wire = Format.parse(wire)
        self._arithmetic = arithmetic
        self._allocate = allocate or aligned_empty
        self._layers: dict[str, HostLayer] = {}
        stored = dict.fromkeys(Section, Format.FP32) | {Section.WIRE: self._wire}
        self._capabilities = Capabilities(
            name=name,
            wire=self._wire,
            gradients=tuple(Format),
            sections=tuple(SectionType(section, fmt) for section, fmt in stored.items()),
            leases=True,
        )
        self._dispatcher = Dispatcher(name, on_stop=arithmetic.close)
        # At interpreter exit the dispatchers see to themselves.
        self._finalizer = _finalize(self, self._dispatcher)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # --- layers

    def create(self, layout: LayerLayout) -> None:
        self._refuse_taken(layout.name)
        layer = HostLayer(LayerStore(layout, self._wire, self._allocate))
        with self._dispatcher.lock:
            self._refuse_taken(layout.name)
            self._layers[layout.name] = layer

    def remove(self, layer: str) -> None:
        with self._dispatcher.lock:
            found = self._find(layer)
            refuse_leased(found)
            ticket = self._dispatcher.submit(found.queue, _removal(self._layers, found, self._dispatcher))
        ticket.result()

    def layers(self) -> tuple[str, ...]:
        with self._dispatcher.lock:
            self._dispatcher.refuse_if_closed()
            return tuple(self._layers)

    def layout(self, layer: str) -> LayerLayout:
        return self._find(layer).layout

    def stored_bytes(self) -> int:
        with self._dispatcher.lock:
            self._dispatcher.refuse_if_closed()
            return sum(layer.store.nbytes for layer in self._layers.values())

    # --- weights to the device

    def fetch(self, layer: str, out: NDArray[Any]) -> Ticket[None]:
        found = self._find_sound(layer)
        check_array(found, "out", out, (self._wire.carrier,), writeable=True)
        return self._copy_out(found, "fetch", found.store.weights, out, None)

    def lease(self, layer: str) -> Ticket[Lease]:
        found = self._find_sound(layer)
        return self._dispatcher.lease(found.queue, found.store.lease_view, found.refuse_if_unfit)

    # --- gradients in

    def accumulate(self, layer: str, grad: NDArray[Any], *, first: bool) -> Ticket[None]:
        found = self._find_trainable(layer, "accumulate")
        check_gradient(found, grad)
        arithmetic = self._arithmetic

        def work() -> None:
            arithmetic.accumulate(found.store[Section.GRAD], grad, first=first)
            found.keep_promise_of_sum()

        with self._dispatcher.lock:
            if not first:
                refuse_without_sum(found, "accumulate with first=False")
            found.promise_sum()
            return self._submit(found, "accumulate", work, needs_sum=not first)

    def fold(
        self, layer: str, grad: NDArray[Any] | None, hyper: AdamHyper, *, first: bool, scale: float = 1.0
    ) -> Ticket[None]:
        found = self._find_trainable(layer, "fold")
        arithmetic, store = self._arithmetic, found.store
        into, factor = scalars(found, lambda: (hyper.fold_scalars(), scalar("scale", scale, signed=True)))
        with self._dispatcher.lock:
            g = gradient(found, "fold", grad)

            def work() -> None:
                arithmetic.fold(store[Section.M], store[Section.V], g, into, scale=factor, first=first)

            return self._submit(found, "fold", work, needs_sum=grad is None)

    def apply(self, layer: str, hyper: AdamHyper) -> Ticket[None]:
        found = self._find_trainable(layer, "apply")
        arithmetic, store = self._arithmetic, found.store
        with self._dispatcher.lock:
            t = found.queue.applies + 1
            update = scalars(found, lambda: hyper.apply_scalars(t))

            def work() -> None:
                arithmetic.apply(store[Section.P], store[Section.M], store[Section.V], update, store.wire_copy)
                _restore_padding(store, update)

            return self._submit(found, "apply", work, waits_for_leases=True, applies=1)

    def fold_apply(
        self, layer: str, grad: NDArray[Any] | None, hyper: AdamHyper, *, first: bool, scale: float = 1.0
    ) -> Ticket[None]:
        found = self._find_trainable(layer, "fold_apply")
        arithmetic, store = self._arithmetic, found.store
        with self._dispatcher.lock:
            g = gradient(found, "fold_apply", grad)
            t = found.queue.applies + 1
            into, update, factor = scalars(
                found, lambda: (hyper.fold_scalars(), hyper.apply_scalars(t), scalar("scale", scale, signed=True))
            )

            def work() -> None:
                _fold_apply(arithmetic, store, g, into, update, factor, first)
                _restore_padding(store, update)

            return self._submit(found, "fold_apply", work, waits_for_leases=True, needs_sum=grad is None, applies=1)

    # --- checkpoints

    def read(self, layer: str, section: Section, out: NDArray[Any] | None = None) -> Ticket[NDArray[Any]]:
        found = self._find_sound(layer)
        section = section_of(found, section)
        with self._dispatcher.lock:
            if section is Section.GRAD:
                refuse_without_sum(found, "read")
            source = found.store.weights if section is Section.WIRE else stored_section(found, section)
            if out is None:
                target: NDArray[Any] = np.empty(found.layout.size, source.dtype)
            else:
                check_array(found, "out", out, (source.dtype,), writeable=True)
                target = out
            return self._copy_out(found, "read", source, target, target, needs_sum=section is Section.GRAD)

    def write(self, layer: str, section: Section, values: NDArray[np.float32]) -> Ticket[None]:
        found = self._find(layer)
        section = section_of(found, section)
        self._find_sound(layer, repairs=section)
        if section is Section.WIRE:
            raise ContractError(f"layer {layer!r}: the wire copy follows p and cannot be written; write p")
        check_array(found, "values", values, _FP32)
        # As integers, values with a set sign bit (-0 and negative NaN too) are the negative ones.
        if section is Section.V and values.view(np.int32).min(initial=0) < 0:
            raise ContractError(f"layer {layer!r}: v has an element with its sign bit set; it must be +0 or positive")
        arithmetic, store = self._arithmetic, found.store

        def work() -> None:
            arithmetic.convert(values, store[section])
            store.clear_padding(section)
            if section is Section.P and store.wire_copy is not None:
                arithmetic.convert(store[Section.P], store.wire_copy)
            if section is Section.GRAD:
                found.keep_promise_of_sum()

        with self._dispatcher.lock:
            if section is not Section.GRAD:
                stored_section(found, section)
                return self._submit(found, "write", work, waits_for_leases=section is Section.P, repairs=section)
            refuse_frozen(found, "write of a summed gradient")
            found.promise_sum()
            return self._submit(found, "write", work)

    def applies(self, layer: str) -> int:
        with self._dispatcher.lock:
            return self._find(layer).queue.applies

    def set_applies(self, layer: str, t: int) -> None:
        found = self._find(layer)
        count = operator.index(t)
        if count < 0 or (count and not found.layout.trainable):
            raise ContractError(f"layer {layer!r} cannot have had {count} applies")
        self._dispatcher.submit(found.queue, lambda: None).result()
        with self._dispatcher.lock:
            found.queue.applies = count

    def damaged(self, layer: str) -> str | None:
        return self._find(layer).damage

    # --- the server itself

    def synchronize(self) -> None:
        self._dispatcher.synchronize()
        if (error := self._dispatcher.first_error()) is not None:
            raise error

    def close(self) -> None:
        """Finish outstanding calls, stop workers, free memory. Closing twice is harmless.

        A call that waits for a lease fails with ServerClosed. Leased arrays stay valid until they are dropped. Warns of
        an error that nobody has waited for.
        """
        self._finalizer.detach()
        self._dispatcher.stop()
        self._layers.clear()
        error = self._dispatcher.first_error()
        if error is not None and not isinstance(error, ServerClosed):
            warnings.warn(f"{self._capabilities.name} was closed after an error: {error}", RuntimeWarning, stacklevel=2)

    # --- helpers

    def _find(self, layer: str) -> HostLayer:
        self._dispatcher.refuse_if_closed()
        found = self._layers.get(layer)
        if found is None:
            known = ", ".join(map(repr, list(self._layers)[:8])) or "none"
            raise ContractError(f"unknown layer {layer!r}; the server's {len(self._layers)} layers: {known}")
        return found

    def _find_sound(self, layer: str, repairs: Section | None = None) -> HostLayer:
        found = self._find(layer)
        with self._dispatcher.lock:
            # With calls outstanding the layer may be repaired before this call's turn: then its ticket tells.
            if not found.queue.outstanding:
                found.refuse_if_unfit(repairs=repairs)
        return found

    def _find_trainable(self, layer: str, what: str) -> HostLayer:
        found = self._find_sound(layer)
        refuse_frozen(found, what)
        return found

    def _refuse_taken(self, layer: str) -> None:
        self._dispatcher.refuse_if_closed()
        if layer in self._layers:
            raise ContractError(f"layer {layer!r} is there already: remove it first, or choose another name")

    def _submit(
        self,
        layer: HostLayer,
        what: str,
        work: Callable[[], T],
        *,
        waits_for_leases: bool = False,
        applies: int = 0,
        changes: bool = True,
        repairs: Section | None = None,
        needs_sum: bool = False,
    ) -> Ticket[T]:
        run = layer.guard(what, work, changes=changes, repairs=repairs, needs_sum=needs_sum)
        return self._dispatcher.submit(layer.queue, run, waits_for_leases=waits_for_leases, applies=applies)

    def _copy_out(
        self, layer: HostLayer, what: str, source: NDArray[Any], out: NDArray[Any], value: T, *, needs_sum: bool = False
    ) -> Ticket[T]:
        arithmetic = self._arithmetic

        def work() -> T:
            arithmetic.convert(source, out)
            return value

        return self._submit(layer, what, work, changes=False, needs_sum=needs_sum)


class GoldenEPS(HostEPS):
    """The golden model as a server: numpy, slow, and the judge of every other server."""

    def __init__(self, *, wire: Format | str = Format.FP32, allocate: Allocate | None = None) -> None:
        super().__init__(GoldenArithmetic(), name="golden", wire=wire, allocate=allocate)


def _finalize(server: HostEPS, dispatcher: Dispatcher) -> weakref.finalize[..., HostEPS]:
    finalizer = weakref.finalize(server, dispatcher.stop, "the server was forgotten", wait=False)
    finalizer.atexit = False
    return finalizer


def _removal(layers: dict[str, HostLayer], layer: HostLayer, dispatcher: Dispatcher) -> Callable[[], None]:
    def run() -> None:
        with dispatcher.lock:
            refuse_leased(layer)
            layer.removed = True
            layers.pop(layer.name, None)

    return run


def _fold_apply(
    arithmetic: Arithmetic,
    store: LayerStore,
    g: NDArray[Any],
    into: FoldScalars,
    update: ApplyScalars,
    scale: float,
    first: bool,
) -> None:
    p, m, v = store[Section.P], store[Section.M], store[Section.V]
    arithmetic.fold_apply(p, m, v, g, into, update, store.wire_copy, scale=scale, first=first)


def _restore_padding(store: LayerStore, update: ApplyScalars) -> None:
    # 0/0 where eps is 0, and -0 from 0*k where k is negative.
    if update.eps == 0 or update.k < 0:
        store.clear_padding(Section.P)
        if store.wire_copy is not None:
            store.clear_padding(Section.WIRE)
