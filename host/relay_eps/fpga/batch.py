"""What the host writes for the EPS core, and what it reads back: descriptors and completion records as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.formats import Format
from relay_eps.fpga import interface
from relay_eps.fpga.interface import SOURCES, Fault, Opcode, State

#: The formats by the numbers that descriptors give them.
FORMATS = (Format.FP32, Format.BF16, Format.FP16)
#: The streams whose elements a record counts.
ACKNOWLEDGED = tuple(name.removesuffix("_acknowledged") for name in interface.RECORD if name.endswith("_acknowledged"))
_WORD_BYTES = 4


@dataclass(frozen=True)
class Descriptor:
    """One operation. What an operation does not use may be anything that fits; what is left out is 0.

    Attributes:
        length: in elements; of a copy, a fill and an identify in words of 32 bits.
        tag: comes back in the record.
        first: the mini-batch's first gradient.
        g_format, wire_format: places in `FORMATS`.
        pattern: what a fill writes.
        addresses: in bytes, by the name of the stream.
        scalars: by name; rounded to fp32.
    """

    opcode: Opcode
    length: int = 0
    tag: int = 0
    first: bool = False
    g_format: int = 0
    wire_format: int = 0
    pattern: int = 0
    addresses: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """What an operation uses of the memory for one stream."""

    address: int
    nbytes: int
    is_read: bool
    is_written: bool

    @property
    def end(self) -> int:
        """The address after its last byte."""
        return self.address + self.nbytes


@dataclass(frozen=True)
class Record:
    """How a descriptor ended.

    Attributes:
        number: the descriptor's place in its batch.
        stream: what met the fault, one of `SOURCES`; None without a fault.
        fault_address: where, in bytes.
        acknowledged: elements whose writes have their responses, by stream.
        clocks: from when it entered the pipeline to its record.
    """

    number: int
    tag: int
    state: State
    fault: Fault
    nonfinite: bool
    wrote: bool
    stream: str | None
    fault_address: int
    acknowledged: Mapping[str, int]
    clocks: int


def sections(descriptor: Descriptor) -> dict[str, Section]:
    """The streams that an operation uses, in the order of `interface.STREAMS`; ValueError for an unknown format."""
    reads, writes = interface.USES[descriptor.opcode]
    if descriptor.opcode is Opcode.ACCUMULATE and descriptor.first:
        reads = ("g",)
    if descriptor.opcode in interface.WIRE_IS_OPTIONAL and not descriptor.addresses.get("wire", 0):
        writes = tuple(name for name in writes if name != "wire")
    return {
        name: Section(
            descriptor.addresses.get(name, 0),
            descriptor.length * _itemsize(descriptor, name),
            name in reads,
            name in writes,
        )
        for name in interface.STREAMS
        if name in reads or name in writes
    }


def _itemsize(descriptor: Descriptor, stream: str) -> int:
    if stream == "g":
        return _format("g_format", descriptor.g_format).itemsize
    if stream == "wire" and descriptor.opcode in interface.WIRE_HAS_FORMAT:
        return _format("wire_format", descriptor.wire_format).itemsize
    return _WORD_BYTES


def _format(name: str, number: int) -> Format:
    if not 0 <= number < len(FORMATS):
        known = ", ".join(f"{place} ({fmt.value})" for place, fmt in enumerate(FORMATS))
        raise ValueError(f"{name} = {number} is no format: use one of {known}")
    return FORMATS[number]


def encode(descriptors: Iterable[Descriptor]) -> NDArray[np.uint8]:
    """The bytes of a batch, a row a descriptor.

    Raises ValueError for what does not fit in its field, and for names that there are not. Whether the descriptors make
    sense is for the core to judge: it checks all of them.
    """
    rows = [_words(number, descriptor) for number, descriptor in enumerate(descriptors)]
    words = np.array(rows, "<u4").reshape(len(rows), interface.DESCRIPTOR_SIZE // _WORD_BYTES)
    return words.view(np.uint8)


def _words(number: int, descriptor: Descriptor) -> list[int]:
    where = f"descriptor {number}"
    words = [0] * (interface.DESCRIPTOR_SIZE // _WORD_BYTES)
    for path, (low, width) in interface.DESCRIPTOR_FIELDS.items():
        place, _, name = path.partition(".")
        bits = _fitting(where, name, getattr(descriptor, name), width)
        words[interface.DESCRIPTOR[place][0] // _WORD_BYTES] |= bits << low
    values: dict[str, int] = {name: getattr(descriptor, name) for name in ("tag", "length", "pattern")}
    for stream in _known(where, "stream", descriptor.addresses, interface.STREAMS):
        values[f"{stream}_address"] = descriptor.addresses[stream]
    for scalar in _known(where, "scalar", descriptor.scalars, interface.SCALARS):
        values[scalar] = _fp32_bits(where, scalar, descriptor.scalars[scalar])
    for name, value in values.items():
        offset, width = interface.DESCRIPTOR[name]
        bits = _fitting(where, name, value, width)
        for part in range(width // 32):
            words[offset // _WORD_BYTES + part] = bits >> 32 * part & 0xFFFF_FFFF
    return words


def _fitting(where: str, name: str, value: object, width: int) -> int:
    if not isinstance(value, (int, np.integer)) or not 0 <= value < 1 << width:
        raise ValueError(f"{where}: {name} = {value!r} is not an integer of {width} bits")
    return int(value)


def _known(where: str, what: str, given: Mapping[str, object], known: tuple[str, ...]) -> Iterable[str]:
    for name in given:
        if name not in known:
            raise ValueError(f"{where}: there is no {what} {name!r}: use some of {', '.join(known)}")
    return given


def _fp32_bits(where: str, name: str, value: float) -> int:
    try:
        return int.from_bytes(struct.pack("<f", value), "little")
    except (OverflowError, struct.error):
        raise ValueError(f"{where}: {name} = {value!r} is not a number that fp32 can hold") from None


def decode(data: bytes | NDArray[np.uint8], count: int) -> list[Record]:
    """The first ``count`` completion records in ``data``; ValueError where it ends before, or holds unknown numbers."""
    given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1)
    if count < 0:
        raise ValueError(f"{count} records cannot be decoded: use 0 or more")
    if given.nbytes < count * interface.RECORD_SIZE:
        raise ValueError(f"{count} records have {count * interface.RECORD_SIZE} bytes, not {given.nbytes}")
    rows = given.view(np.uint8)[: count * interface.RECORD_SIZE].reshape(count, interface.RECORD_SIZE)
    return [_record(place, row.tobytes()) for place, row in enumerate(rows)]


def _record(place: int, row: bytes) -> Record:
    values = {
        name: int.from_bytes(row[offset : offset + width // 8], "little")
        for name, (offset, width) in interface.RECORD.items()
    }
    for name, (low, width) in interface.RECORD_FIELDS.items():
        values[name] = values[name.partition(".")[0]] >> low & (1 << width) - 1
    fault = Fault(_code(place, "fault", values["status.fault"], [*Fault]))
    source = _code(place, "stream", values["status.stream"], range(len(SOURCES)))
    return Record(
        number=values["number"],
        tag=values["tag"],
        state=State(_code(place, "state", values["status.state"], [*State])),
        fault=fault,
        nonfinite=bool(values["status.nonfinite"]),
        wrote=bool(values["status.wrote"]),
        stream=None if fault is Fault.NONE else SOURCES[source],
        fault_address=values["fault_address"],
        acknowledged={name: values[f"{name}_acknowledged"] for name in ACKNOWLEDGED},
        clocks=values["clocks"],
    )


def _code(place: int, name: str, value: int, known: Iterable[int]) -> int:
    if value not in known:
        raise ValueError(f"record {place}: {name} = {value} has no meaning: is it a record that the core has written?")
    return value
