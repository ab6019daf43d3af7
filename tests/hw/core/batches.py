"""Batches for a core: random ones, and what it checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relay_eps.fpga.batch import Descriptor, Section, encode, sections
from relay_eps.fpga.interface import Fault, Opcode
from relay_eps_hw.core.shape import SLOTS
from relay_eps_hw.interface.descriptors import ALIGNMENT, DESCRIPTOR, LONGEST, RECORD, SCALARS, STREAMS
from relay_eps_hw.lane.beat import SIGNED
from tests.hw.lane.workload import FORMATS, random_scalar, random_values

Bits = NDArray[np.uint32]
Rng = np.random.Generator
PAGE = 4096
#: Operations on one layer, one after another: an opcode's name, and for copies and fills the sections.
SCENARIOS = (
    "fold fold fold apply fetch",
    "fold_apply fold_apply fetch",
    "accumulate accumulate copy:m:s fold",
    "fill:g accumulate fold",
    "fill:m accumulate accumulate",
    "fold_apply copy:wire:g fold",
    "fetch copy:wire:h copy:h:g accumulate",
    "copy:p:s apply copy:s:p fetch",
    "copy:v:s fold copy:s:v apply",
    "fill:wire copy:wire:h fetch",
    "fill:p fetch fill:p apply barrier copy:p:s",
    "fold barrier apply identify",
)
_NAN_WORDS = np.array([0x7FC0_7FC0, 0xFFC0_FFC0, 0x7F80_0001, 0xFFFF_FFFF, 0x7FFF_7FFF, 0xFF81_7E01], np.uint32)


@dataclass(frozen=True)
class Batch:
    """A batch in memory.

    Attributes:
        memory: an image from the address ``base``: sections, descriptors, records as the host clears them, poison.
        descriptors: as they were encoded; one that is refused may have other bits set in memory.
        count: what the register says.
    """

    memory: NDArray[np.uint8]
    base: int
    descriptors: tuple[Descriptor, ...]
    batch_address: int
    completion_address: int
    count: int

    def words(self, number: int) -> Bits:
        """A descriptor as it lies in memory; a view."""
        at = self.batch_address - self.base + DESCRIPTOR.size * number
        return self.memory[at : at + DESCRIPTOR.size].view(np.uint32)


@dataclass(frozen=True)
class _Layer:
    """Sections of ``length`` elements by name: the contract's, s of words, h of 16 bits; and their offsets."""

    length: int
    half: int
    g_format: int
    wire_format: int
    places: dict[str, int]

    def format(self, name: str) -> int:
        return {"g": self.g_format, "wire": self.wire_format, "h": self.half}.get(name, 0)

    def nbytes(self, name: str) -> int:
        return self.length * FORMATS[self.format(name)].itemsize

    def contents(self, rng: Rng) -> Iterator[tuple[str, NDArray]]:
        """What lies in each section before the batch; v is not negative."""
        is_tame = rng.random() < 0.6
        for name in (*STREAMS, "s", "h"):
            words = random_values(rng, self.length)
            if is_tame:
                values = rng.standard_normal(self.length) * 10.0 ** rng.uniform(-6, 1)
                words = values.astype(np.float32).view(np.uint32)
            if name == "g" and rng.random() < 0.3:
                words[int(rng.integers(self.length))] = 0x7F80_0000
            if name == "v":
                words = np.where(np.isnan(words.view(np.float32)), words, words & np.uint32(0x7FFF_FFFF))
            # As bf16 it is about the same number; as fp16 another one.
            yield name, (words >> np.uint32(16)).astype(np.uint16) if self.format(name) else words.astype(np.uint32)


class _Image:
    """Sections at random distances, with poison between them."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._parts: list[tuple[int, NDArray[np.uint8]]] = []
        self._end = 0

    def add(self, data: NDArray, *, fills_page: bool = False) -> int:
        """Its offset: near the last one, or with its start or end about a boundary of 4 KiB, or with its end at one."""
        kind, blocks = self._rng.random(), -(-data.nbytes // ALIGNMENT)
        at = self._end + int(self._rng.choice([0, 0, 1, 2, 3])) * ALIGNMENT
        if fills_page or kind < 0.3:
            beats = 0 if fills_page else int(self._rng.integers(-1, 2))
            beats -= blocks if fills_page or kind < 0.1 else 0
            at += (beats * ALIGNMENT - at) % PAGE
        self._parts.append((at, np.ascontiguousarray(data).view(np.uint8).reshape(-1)))
        self._end = at + blocks * ALIGNMENT
        return at

    @property
    def size(self) -> int:
        return -(-self._end // PAGE) * PAGE

    def memory(self) -> NDArray[np.uint8]:
        words = self._rng.integers(1 << 32, size=self.size // 4, dtype=np.uint32)
        poison = np.where(self._rng.random(len(words)) < 0.7, self._rng.choice(_NAN_WORDS, len(words)), words)
        memory = poison.astype(np.uint32).view(np.uint8)
        for at, data in self._parts:
            memory[at : at + len(data)] = data
        return memory


class Writer:
    """Lays out layers, ``above`` pages below the last address or lower, and writes a batch of operations on them."""

    def __init__(
        self, rng: Rng, lengths: Sequence[int], operations: int, address_bits: int, ragged: float = 0, above: int = 0
    ) -> None:
        self.rng, self._ragged, self._operations = rng, ragged, operations
        self.layers: list[_Layer] = []
        for length in lengths:
            half = int(rng.integers(1, 3))
            g_format, wire_format = rng.choice([0, half, half], 2).tolist()
            self.layers.append(_Layer(length, half, g_format, wire_format, {}))
        # What identifies write stays apart: its counters are not known.
        self._status: dict[str, int] = {}
        self._status_words = int(rng.integers(1, 80))
        own = {"batch": DESCRIPTOR.size * operations, "records": RECORD.size * operations}
        own |= dict.fromkeys(("one", "two"), 4 * self._status_words)
        parts: list[tuple[dict[str, int], str, NDArray]] = [
            (self._status, name, np.zeros(size, np.uint8)) for name, size in own.items()
        ]
        parts += [(layer.places, *content) for layer in self.layers for content in layer.contents(rng)]
        self._image = _Image(rng)
        for number, choice in enumerate(rng.permutation(len(parts)).tolist()):
            places, name, data = parts[choice]
            places[name] = self._image.add(data, fills_page=number == len(parts) - 1)
        last = ((1 << address_bits) - self._image.size) // PAGE - above
        self._base = PAGE * int(rng.choice([1, int(rng.integers(1, last)), last, last]))
        # Sections that hold nothing negative but NaN, and so can be v.
        self._positive = {layer.places["v"] for layer in self.layers}

    def finish(self, descriptors: Sequence[Descriptor]) -> Batch:
        memory, at = self._image.memory(), self._status["batch"]
        memory[at : at + DESCRIPTOR.size * self._operations] = encode(descriptors).reshape(-1)
        batch, records = (self._base + self._status[name] for name in ("batch", "records"))
        return Batch(memory, self._base, tuple(descriptors), batch, records, self._operations)

    def write(self, layer: _Layer, text: str, *, plain: bool = False) -> Descriptor | None:
        """The operation of a word of `SCENARIOS`, ``plain`` on the layer's own sections; None where it cannot be."""
        name, *args = text.split(":")
        if name in ("copy", "fill"):
            return self._words(layer, Opcode[name.upper()], *args)
        if name == "identify":
            one, two = (self._status[place] for place in self.rng.permutation(["one", "two"]).tolist())
            opcode = Opcode.COPY if self.rng.random() < 0.3 else Opcode.IDENTIFY
            return self._descriptor(opcode, self._status_words, {"p": one, "wire": two})
        if name == "barrier":
            return self._descriptor(Opcode.BARRIER, int(self.rng.integers(1 << 32)), {})
        opcode = Opcode[name.upper()]
        used, formats = self._roles(layer, opcode, other=0 if plain else 0.2)
        places = {stream: layer.places[section] for stream, section in used.items()}
        if not plain and opcode in (Opcode.APPLY, Opcode.FOLD_APPLY) and self.rng.random() < 0.3:
            places["wire"] = -self._base
        descriptor = self._descriptor(opcode, layer.length, places, **formats)
        for stream, section in sections(descriptor).items():
            if section.is_written and stream != "v":
                self._positive.discard(section.address - self._base)
        return descriptor

    def _roles(self, layer: _Layer, opcode: Opcode, other: float) -> tuple[dict[str, str], dict[str, int]]:
        """The section that each stream has, all different, and the formats; with probability ``other`` not its own."""
        stand_ins = {"g": ("s", "wire", "h"), "m": ("s",), "v": ("s",), "p": ("s",), "wire": ("h", "s", "g")}
        if opcode is Opcode.FETCH:
            stand_ins["p"] = ("m", "v", "s")
        used: dict[str, str] = {}
        for stream in sections(Descriptor(opcode, 1, addresses={"wire": 1})):
            section = stream
            if self.rng.random() < other:
                section = str(self.rng.choice(stand_ins[stream]))
            can_be = stream != "v" or layer.places[section] in self._positive
            used[stream] = section if can_be and section not in used.values() else stream
        if len({*used.values()}) < len(used):
            used = {stream: stream for stream in used}
        streams = (stream for stream in ("g", "wire") if stream in used)
        return used, {f"{stream}_format": layer.format(used[stream]) for stream in streams}

    def _words(self, layer: _Layer, opcode: Opcode, *names: str) -> Descriptor | None:
        """A copy or a fill of whole sections; ``ragged`` ones end anywhere in the last block."""
        nbytes = {layer.nbytes(name) for name in names}
        source, target = layer.places[names[0]], layer.places[names[-1]]
        pattern = int(random_values(self.rng, 1)[0])
        is_positive = source in self._positive if opcode is Opcode.COPY else pattern >> 31 == 0
        is_ragged = self.rng.random() < self._ragged
        words, odd = divmod(max(nbytes), 4)
        if is_ragged:
            words = (-(-max(nbytes) // ALIGNMENT) - 1) * 16 + int(self.rng.integers(1, 17))
        if len(nbytes) > 1 or (odd and not is_ragged) or (names[-1] == "v" and not is_positive):
            return None
        if not is_positive:
            self._positive.discard(target)
        elif 4 * words >= max(nbytes):
            self._positive.add(target)
        return self._descriptor(opcode, words, {"p": source, "wire": target}, pattern=pattern)

    def _descriptor(self, opcode: Opcode, length: int, places: dict[str, int], **given: int) -> Descriptor:
        """What the operation does not use is anything."""
        rng = self.rng
        addresses = {name: int(rng.integers(1 << 64, dtype=np.uint64)) for name in STREAMS}
        addresses |= {name: self._base + place for name, place in places.items()}
        numbers = {name: int(rng.integers(3)) for name in ("g_format", "wire_format")}
        numbers |= {name: int(rng.integers(1 << 32)) for name in ("tag", "pattern")}
        scalars = {name: random_scalar(rng, name) for name in SCALARS}
        is_first = bool(rng.integers(2))
        return Descriptor(opcode, length, first=is_first, addresses=addresses, scalars=scalars, **numbers | given)

    def any_operation(self, layer: _Layer) -> Descriptor:
        """One that can be."""
        lanes = ("fold", "apply", "fold_apply", "accumulate", "fetch")
        while True:
            one, two = self.rng.permutation((*STREAMS, "s", "h"))[:2].tolist()
            kind = self.rng.choice((*lanes, *lanes, f"copy:{one}:{two}", f"fill:{one}", "barrier", "identify"))
            descriptor = self.write(layer, str(kind))
            if descriptor is not None:
                return descriptor


def random_length(rng: Rng, longest: int) -> int:
    """Mostly such as leave a tail."""
    about = int(rng.choice([16, 64, 1024])) * int(rng.integers(1, 4)) + int(rng.integers(-1, 2))
    return min(longest, int(rng.choice([int(rng.integers(1, 41)), about, about, int(rng.integers(1, longest + 1))])))


def random_batch(
    rng: Rng,
    *,
    layers: int = 3,
    operations: int = 12,
    longest: int = 2048,
    address_bits: int = 64,
    ragged: float = 0,
    only: Collection[Opcode] = tuple(Opcode),
) -> Batch:
    """A batch that a core must run: on the same layer again and again, and on others between.

    Sections are equal or disjoint; with probability ``ragged`` copies and fills take more or fewer words of the last
    block than it has elements, which a core counts as equal. Operations are of those in ``only``, copies among them.
    """
    writer = Writer(rng, [random_length(rng, longest) for _ in range(layers)], operations, address_bits, ragged)
    descriptors: list[Descriptor] = []
    while len(descriptors) < operations:
        layer = writer.layers[int(rng.integers(layers))]
        for text in str(rng.choice(SCENARIOS)).split():
            written: list[Descriptor | None] = []
            if rng.random() < 0.2:
                written.append(writer.any_operation(writer.layers[int(rng.integers(layers))]))
            written.append(writer.write(layer, text))
            descriptors += [each for each in written if each is not None and each.opcode in only]
    return writer.finish(descriptors[:operations])


@dataclass(frozen=True)
class Error:
    """A fault as the registers have it.

    Attributes:
        address: None for what may be anything.
        tag: what the record of the descriptor has.
        is_recorded: there are records at all.
    """

    fault: Fault
    stream: str
    address: int | None
    number: int = 0
    tag: int = 0
    is_recorded: bool = True


def first_error(batch: Batch, address_bits: int) -> Error | None:
    """What a core must find wrong with a batch, if anything."""
    if batch.count >= 1 << 31:
        return Error(Fault.LENGTH, "descriptors", None, is_recorded=False)
    places = (("descriptors", batch.batch_address, DESCRIPTOR.size), ("records", batch.completion_address, RECORD.size))
    for stream, address, size in places if batch.count else ():
        is_recorded = stream == "descriptors"
        if address % ALIGNMENT:
            return Error(Fault.ALIGNMENT, stream, address, is_recorded=is_recorded)
        if address + size * batch.count > 1 << address_bits:
            return Error(Fault.ADDRESS, stream, address, is_recorded=is_recorded)
    for number, descriptor in enumerate(batch.descriptors[: batch.count]):
        # No more are in the pipeline with it.
        flight = [*map(sections, batch.descriptors[max(0, number - SLOTS + 1) : number])]
        for fault, stream, at in _faults(descriptor, batch.words(number), flight, address_bits):
            address = batch.batch_address + DESCRIPTOR.size * number if at is None else at
            return Error(fault, stream, address, number, descriptor.tag)
    return None


def _faults(
    descriptor: Descriptor, words: Bits, flight: Sequence[dict[str, Section]], address_bits: int
) -> Iterator[tuple[Fault, str, int | None]]:
    """What is wrong with a descriptor, in the order of the checks; without an address it is the descriptor's."""
    known = sum(bits.mask for bits in DESCRIPTOR["operation"].fields)
    if int(words[0]) & 0xFF not in [*Opcode] or int(words[0]) & ~known:
        yield Fault.OPCODE, "descriptors", None
    if 3 in (descriptor.g_format, descriptor.wire_format):
        yield Fault.FORMAT, "descriptors", None
    if descriptor.opcode is not Opcode.BARRIER and not 1 <= descriptor.length <= LONGEST:
        yield Fault.LENGTH, "descriptors", None
    used = sections(descriptor)
    for stream, section in used.items():
        if section.address % ALIGNMENT:
            yield Fault.ALIGNMENT, stream, section.address
        if section.end > 1 << address_bits:
            yield Fault.ADDRESS, stream, section.address
    taken = {word for place in DESCRIPTOR for word in range(place.offset // 4, place.end // 4)}
    scalars = DESCRIPTOR[SCALARS[0]].offset // 4
    if any(words[word] for word in range(scalars) if word not in taken):
        yield Fault.OPCODE, "descriptors", None
    if any(_outside(name, int(words[DESCRIPTOR[name].offset // 4])) for name in SCALARS):
        yield Fault.SCALAR, "descriptors", None
    if any(words[word] for word in range(scalars, len(words)) if word not in taken):
        yield Fault.OPCODE, "descriptors", None
    before: list[tuple[int, int]] = []
    others = [_blocks(other) for earlier in flight for other in earlier.values()]
    for stream, section in used.items():
        own = _blocks(section)
        if any(_overlap(own, other) for other in before) or any(own != o and _overlap(own, o) for o in others):
            yield Fault.OVERLAP, stream, section.address
        before.append(own)


def _outside(name: str, bits: int) -> bool:
    exponent = bits >> 23 & 0xFF
    return exponent == 0xFF or (exponent == 0 and bits != 0) or (bits >> 31 == 1 and name not in SIGNED)


def _blocks(section: Section) -> tuple[int, int]:
    return section.address // ALIGNMENT, -(-section.end // ALIGNMENT)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
