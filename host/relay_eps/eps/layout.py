"""How the tensors of an EPS layer lie in one flat array, and the sections that an EPS layer is stored as."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from relay_eps.eps.formats import Format
from relay_eps.errors import ContractError

ALIGN_BYTES = 64
#: Every tensor starts at a multiple of this many elements: 64 bytes in the narrowest (16-bit) format,
#: so that one element offset serves every section whatever its format.
ALIGN_ELEMENTS = ALIGN_BYTES // 2


class Section(str, Enum):
    """A part of an EPS layer's storage; each is one flat array of the layout's ``size`` elements."""

    P = "p"
    M = "m"
    V = "v"
    #: The summed gradient, present only after an ``accumulate``.
    GRAD = "grad"
    #: The weights in the wire format.
    WIRE = "wire"


@dataclass(frozen=True)
class SectionType:
    """How a section is stored. Planned 16-bit moments will be further values here, not further classes."""

    section: Section
    format: Format


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of an EPS layer: its name in the model, and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements (1 for a scalar)."""
        return prod(self.shape)


@dataclass(frozen=True)
class TensorSlot:
    """Where a tensor lies: elements ``start`` to ``stop`` of each flat section."""

    spec: TensorSpec
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.spec.size


@dataclass(frozen=True)
class LayerLayout:
    """A named list of tensors as one flat array; each starts on 64 bytes in every format, padding is zero.

    Raises ContractError for an empty name, for two tensors of one name, and for negative dimensions.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    trainable: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise ContractError("an EPS layer needs a name")
        names = [t.name for t in self.tensors]
        if len(set(names)) != len(names):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise ContractError(f"layer {self.name!r} names a tensor twice: {', '.join(twice)}")
        for t in self.tensors:
            if any(d < 0 for d in t.shape):
                raise ContractError(f"layer {self.name!r}: tensor {t.name!r} has a negative dimension: {t.shape}")

    @cached_property
    def slots(self) -> tuple[TensorSlot, ...]:
        """The tensors with their offsets, in order."""
        return tuple(_place(self.tensors))

    @cached_property
    def size(self) -> int:
        """Elements of a flat section, padding included."""
        return _padded(self.slots[-1].stop) if self.slots else 0

    @cached_property
    def parameters(self) -> int:
        """Elements of the tensors themselves, padding excluded."""
        return sum(t.size for t in self.tensors)

    def nbytes(self, fmt: Format) -> int:
        """Bytes of a flat section in ``fmt``."""
        return self.size * fmt.itemsize

    def gaps(self) -> Iterator[tuple[int, int]]:
        """The padding, as (start, stop) element ranges that are not empty."""
        bounds = [slot.start for slot in self.slots] + [self.size]
        for slot, end in zip(self.slots, bounds[1:], strict=True):
            if slot.stop < end:
                yield slot.stop, end


def _padded(elements: int) -> int:
    return -(-elements // ALIGN_ELEMENTS) * ALIGN_ELEMENTS


def _place(tensors: Sequence[TensorSpec]) -> Iterator[TensorSlot]:
    start = 0
    for spec in tensors:
        yield TensorSlot(spec, start)
        start = _padded(start + spec.size)
