"""Words with named fields: what registers, descriptors and records are all made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Field:
    """Some bits of a place.

    Attributes:
        name: as the gateware and the host call it.
        low: its lowest bit, counted from the place's lowest.
        width: in bits.
        meaning: a sentence.
    """

    name: str
    low: int
    width: int
    meaning: str

    @property
    def mask(self) -> int:
        """Its bits where they lie."""
        return ((1 << self.width) - 1) << self.low


@dataclass(frozen=True)
class Place:
    """A number in memory or in the register space, little-endian.

    Attributes:
        name: as the gateware and the host call it.
        offset: in bytes, from the start of its layout.
        meaning: a sentence.
        words: how many 32-bit words it has, 1 or 2.
        fields: what its bits are, where they are not one number.
    """

    name: str
    offset: int
    meaning: str
    words: int = 1
    fields: tuple[Field, ...] = ()

    @property
    def width(self) -> int:
        """Bits it takes."""
        return 32 * self.words

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + 4 * self.words


@dataclass(frozen=True)
class Layout:
    """Places in a block of ``size`` bytes. Bytes that no place takes are reserved, and 0.

    Raises ValueError for places that overlap, stand outside, are not aligned to a word, or share a name; and for fields
    that do so.
    """

    name: str
    size: int
    meaning: str
    places: tuple[Place, ...] = field(default=())

    def __post_init__(self) -> None:
        _check_apart(self.name, ((place.name, place.offset, place.end) for place in self.places), self.size)
        for place in self.places:
            if place.offset % 4 or place.words not in (1, 2):
                raise ValueError(f"{self.name}.{place.name} is not one or two whole words: offset {place.offset:#x}")
            spans = ((bits.name, bits.low, bits.low + bits.width) for bits in place.fields)
            _check_apart(f"{self.name}.{place.name}", spans, place.width)

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places)

    def __getitem__(self, name: str) -> Place:
        for place in self.places:
            if place.name == name:
                return place
        known = ", ".join(place.name for place in self.places)
        raise KeyError(f"{self.name} has no {name!r}; it has {known}")


def _check_apart(owner: str, spans: Iterable[tuple[str, int, int]], size: int) -> None:
    before, end = "its start", 0
    names: set[str] = set()
    for name, start, stop in spans:
        if name in names:
            raise ValueError(f"{owner} has {name} twice")
        if start < end or stop <= start or stop > size:
            raise ValueError(f"{owner}.{name} is out of order, overlaps {before} or stands outside")
        names.add(name)
        before, end = name, stop
