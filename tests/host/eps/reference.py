"""What a server's layer must hold, worked out call by call with the golden functions, and a server driven beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps import golden
from relay_eps.eps.contract import EagerParamServer, Ticket
from relay_eps.eps.formats import Format, narrow
from relay_eps.eps.hyper import AdamHyper, scalar
from relay_eps.eps.layout import LayerLayout, Section, TensorSpec
from tests.host.eps.bits import assert_same_bits, hard_gradient, hard_values

Array = NDArray[np.float32]


HYPERS = (
    AdamHyper(),
    AdamHyper(lr=0.1, beta1=0.0, beta2=0.5, eps=0.0, weight_decay=0.0),
    AdamHyper(lr=2.0, weight_decay=1.0, eps=1e-3),  # k = -1
    AdamHyper(lr=1.0, weight_decay=1.0, beta2=0.0),  # k = 0
    AdamHyper(lr=0.0, eps=0.0, v_scale=0.25),
    AdamHyper(lr=1e-2, beta1=0.95, beta2=0.9999, eps=1.0, v_scale=8.0),
)
SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    (),
    ((0,),),
    ((),),
    ((31,),),
    ((32,),),
    ((33,),),
    ((3, 5), (), (0, 4), (64,), (33,)),
    ((257, 9),),
)


def layout(name: str, *shapes: tuple[int, ...], trainable: bool = True) -> LayerLayout:
    """A layer of tensors t0, t1, and so on."""
    return LayerLayout(name, tuple(TensorSpec(f"t{i}", shape) for i, shape in enumerate(shapes)), trainable)


def positive(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """``values`` with every sign bit cleared, NaN's too."""
    return (values.view(np.uint32) & np.uint32(0x7FFFFFFF)).view(np.float32)


class ReferenceLayer:
    """One layer as the contract has it; each method is the call of that name, done at once."""

    def __init__(self, layout: LayerLayout, wire: Format) -> None:
        self.layout = layout
        self.wire = wire
        self.sections: dict[Section, Array] = {
            s: np.zeros(layout.size, np.float32)
            for s in ([Section.P, Section.M, Section.V] if layout.trainable else [Section.P])
        }
        self.t = 0
        self.padding = np.ones(layout.size, bool)
        for slot in layout.slots:
            self.padding[slot.start : slot.stop] = False

    @property
    def has_sum(self) -> bool:
        return Section.GRAD in self.sections

    def weights(self) -> NDArray[Any]:
        """The weights in the wire format, as an array of their own."""
        return np.array(narrow(self.sections[Section.P], self.wire))

    def accumulate(self, grad: NDArray[Any], *, first: bool) -> None:
        total = self.sections.get(Section.GRAD, np.zeros(0, np.float32))
        self.sections[Section.GRAD] = golden.accumulate(total, grad, first=first)

    def fold(self, grad: NDArray[Any] | None, hyper: AdamHyper, *, first: bool, scale: float) -> None:
        g = self.sections[Section.GRAD] if grad is None else grad
        factor = scalar("scale", scale, signed=True)
        m, v = self.sections[Section.M], self.sections[Section.V]
        m, v = golden.fold(m, v, g, hyper.fold_scalars(), scale=factor, first=first)
        self.sections |= {Section.M: m, Section.V: v}

    def apply(self, hyper: AdamHyper) -> None:
        self.t += 1
        p, m, v = (self.sections[s] for s in (Section.P, Section.M, Section.V))
        self.write(Section.P, golden.apply(p, m, v, hyper.apply_scalars(self.t)))

    def write(self, section: Section, values: Array) -> None:
        self.sections[section] = np.where(self.padding, np.float32(0), values)

    def gradient(self, values: NDArray[Any]) -> NDArray[Any]:
        """``values`` with their padding cleared."""
        return np.where(self.padding, values.dtype.type(0), values)

    def stored_bytes(self) -> int:
        wire = 0 if self.wire is Format.FP32 else self.layout.nbytes(self.wire)
        return wire + sum(array.nbytes for array in self.sections.values())

    def check(self, server: EagerParamServer) -> None:
        """Fails unless the server's layer has these bits in every section, this t, and no damage."""
        name = self.layout.name
        for section, wanted in self.sections.items():
            assert_same_bits(server.read(name, section).result(), wanted, f"{name}.{section.value}")
        assert_same_bits(server.read(name, Section.WIRE).result(), self.weights(), f"{name}.wire")
        assert server.applies(name) == self.t
        assert server.damaged(name) is None


class Pair:
    """A server's layer and its reference, under one call. Tickets are kept, and waited for in the end."""

    def __init__(self, server: EagerParamServer, layer: LayerLayout) -> None:
        self.server = server
        self.name = layer.name
        self.layout = layer
        self.reference = ReferenceLayer(layer, server.capabilities.wire)
        self.tickets: list[Ticket[Any]] = []
        self.looks: list[tuple[str, Ticket[Any] | None, NDArray[Any], NDArray[Any]]] = []
        server.create(layer)

    def fill(self, rng: np.random.Generator) -> None:
        """Hard values in p, m and v."""
        for section in tuple(self.reference.sections):
            self.write(section, hard_values(rng, self.layout.size))

    def gradient(self, rng: np.random.Generator, fmt: Format = Format.FP32) -> NDArray[Any]:
        return self.reference.gradient(hard_gradient(rng, self.layout.size, fmt))

    def write(self, section: Section, values: NDArray[np.float32]) -> None:
        values = positive(values) if section is Section.V else values
        self.tickets.append(self.server.write(self.name, section, values))
        self.reference.write(section, values)

    def accumulate(self, grad: NDArray[Any], *, first: bool) -> None:
        self.tickets.append(self.server.accumulate(self.name, grad, first=first))
        self.reference.accumulate(grad, first=first)

    def fold(self, grad: NDArray[Any] | None, hyper: AdamHyper, *, first: bool, scale: float) -> None:
        self.tickets.append(self.server.fold(self.name, grad, hyper, first=first, scale=scale))
        self.reference.fold(grad, hyper, first=first, scale=scale)

    def apply(self, hyper: AdamHyper) -> None:
        self.tickets.append(self.server.apply(self.name, hyper))
        self.reference.apply(hyper)

    def fold_apply(self, grad: NDArray[Any] | None, hyper: AdamHyper, *, first: bool, scale: float) -> None:
        self.tickets.append(self.server.fold_apply(self.name, grad, hyper, first=first, scale=scale))
        self.reference.fold(grad, hyper, first=first, scale=scale)
        self.reference.apply(hyper)

    def fetch(self) -> None:
        out = np.empty(self.layout.size, self.server.capabilities.wire.carrier)
        self.looks.append(("fetch", self.server.fetch(self.name, out), out, self.reference.weights()))

    def read(self, section: Section) -> None:
        out = np.empty(self.layout.size, np.float32)
        ticket = self.server.read(self.name, section, out)
        self.looks.append((f"read {section.value}", ticket, out, self.reference.sections[section].copy()))

    def lease(self) -> None:
        if self.server.capabilities.leases:
            with self.server.lease(self.name).result() as lease:
                assert_same_bits(lease.array, self.reference.weights(), f"lease of {self.name}")

    def check(self) -> None:
        """Wait for everything; then what was looked at, and what is stored, has the reference's bits."""
        for ticket in self.tickets:
            ticket.result()
        for what, look, got, wanted in self.looks:
            assert look is not None
            look.result()
            assert_same_bits(got, wanted, f"{what} of {self.name}")
        self.reference.check(self.server)


def random_call(pair: Pair, kind: str, rng: np.random.Generator) -> None:
    """Make one call of ``kind`` with random arguments that the contract allows."""
    reference = pair.reference
    fmt = Format(rng.choice([f.value for f in pair.server.capabilities.gradients]))
    first = bool(rng.integers(2))
    hyper = HYPERS[rng.integers(len(HYPERS))]
    scale = float(rng.choice([1.0, 0.5, -3.0, 1e-30, 0.0, 0.1]))
    grad = None if reference.has_sum and rng.integers(3) == 0 else pair.gradient(rng, fmt)
    stored = list(reference.sections)
    if kind == "fetch":
        pair.fetch()
    elif kind == "lease":
        pair.lease()
    elif kind == "read":
        pair.read(stored[rng.integers(len(stored))])
    elif kind == "write":
        choice = [*stored, Section.GRAD] if pair.layout.trainable else stored
        pair.write(choice[rng.integers(len(choice))], hard_values(rng, pair.layout.size))
    elif not pair.layout.trainable:
        pair.fetch()
    elif kind == "accumulate":
        pair.accumulate(pair.gradient(rng, fmt), first=first or not reference.has_sum)
    elif kind == "fold":
        pair.fold(grad, hyper, first=first, scale=scale)
    elif kind == "fold_apply":
        pair.fold_apply(grad, hyper, first=first, scale=scale)
    else:
        pair.apply(hyper)


KINDS = ("fold", "fold_apply", "apply", "accumulate", "fetch", "read", "write", "lease")
