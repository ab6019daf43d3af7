"""What a core must make of a batch: its checks in their order, and its arithmetic by the golden model.

A result that is NaN is any NaN, and so are all copies of it; counters are anything. So memory is kept in halves of
words, and with each half what is known of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.formats import Format, widen
from relay_eps.fpga.batch import Descriptor, sections
from relay_eps.fpga.interface import Opcode, State
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface.descriptors import RECORD, SOURCES
from relay_eps_hw.interface.registers import IDENTITY, REGISTERS, VERSION, Access, registers
from relay_eps_hw.lane.beat import Operation
from tests.hw.core.batches import Batch, Error, first_error
from tests.hw.lane.workload import FORMATS, Work, carried, expected, has_nonfinite_gradient, same

Bits = NDArray[np.uint32]
Flags = NDArray[np.bool_]
#: A record's places and fields by name; None for what may be anything.
Fields = Mapping[str, "int | None"]


class Kind(IntEnum):
    """What is known of a half of a word."""

    EXACT = 0
    #: It is a NaN of this format; of fp32 it is half of one.
    NAN_FP32 = 1
    NAN_BF16 = 2
    NAN_FP16 = 3
    UNKNOWN = 4


#: Words from the identity up to the commands, which an identify leaves out.
STATUS_WORDS = (REGISTERS["reset"].offset - REGISTERS["identity"].offset) // 4
#: By the number of a format.
NANS = (Kind.NAN_FP32, Kind.NAN_BF16, Kind.NAN_FP16)


@dataclass(frozen=True)
class Halves:
    """Memory: the halves of its words, and the `Kind` of each."""

    values: NDArray[np.uint16]
    kinds: NDArray[np.uint8]

    def part(self, first: int, count: int) -> Halves:
        """A view of ``count`` halves."""
        return Halves(self.values[first : first + count], self.kinds[first : first + count])

    def put(self, first: int, other: Halves) -> None:
        """Overwrite what is there."""
        self.values[first : first + len(other.values)] = other.values
        self.kinds[first : first + len(other.values)] = other.kinds


def exact(values: NDArray[np.uint8] | Bits) -> Halves:
    """Of bytes or words that are known, a copy."""
    halves = np.ascontiguousarray(values).view(np.uint16).copy()
    return Halves(halves, np.zeros(len(halves), np.uint8))


def load(halves: Halves, fmt: int) -> tuple[Bits, Flags]:
    """Elements of a format, and which are not known: to be any NaN of this format is enough."""
    if FORMATS[fmt] is not Format.FP32:
        return halves.values.astype(np.uint32), ~np.isin(halves.kinds, (Kind.EXACT, NANS[fmt]))
    low, high = halves.kinds[0::2], halves.kinds[1::2]
    known = (low == high) & np.isin(low, (Kind.EXACT, Kind.NAN_FP32))
    return np.ascontiguousarray(halves.values).view(np.uint32).copy(), ~known


def store(bits: Bits, fmt: int, unknown: Flags) -> Halves:
    """Results of the arithmetic as they lie in memory."""
    values = bits.view(np.float32) if FORMATS[fmt] is Format.FP32 else widen(carried(bits, FORMATS[fmt]))
    nan = np.isnan(values)
    kinds = np.where(unknown, Kind.UNKNOWN, np.where(nan, NANS[fmt], Kind.EXACT)).astype(np.uint8)
    if FORMATS[fmt] is not Format.FP32:
        return Halves(bits.astype(np.uint16), kinds)
    return Halves(np.ascontiguousarray(bits).view(np.uint16), np.repeat(kinds, 2))


def matches(got: NDArray[np.uint16], wanted: Halves) -> Flags:
    """Where halves are as they must be."""
    right = (got == wanted.values) | (wanted.kinds == Kind.UNKNOWN)
    for fmt in (1, 2):
        some = wanted.kinds == NANS[fmt]
        right[some] |= same(got[some].astype(np.uint32), wanted.values[some].astype(np.uint32), FORMATS[fmt])
    some = wanted.kinds == Kind.NAN_FP32
    if some.any():
        # Words are whole: such a half stands beside its other one, unless that was overwritten.
        pairs = some[: len(some) // 2 * 2].reshape(-1, 2)
        whole = np.repeat(pairs.all(axis=1), 2)
        right[: len(whole)] |= pairs.reshape(-1) & ~whole
        right[: len(whole)][whole] |= np.repeat(
            same(got[: len(whole)][whole].view(np.uint32), wanted.values[: len(whole)][whole].view(np.uint32)), 2
        )
    return right


@dataclass(frozen=True)
class Write:
    """What a descriptor writes to one section: ``halves`` at the half ``first`` of the image."""

    stream: str
    first: int
    halves: Halves
    elements: int


@dataclass(frozen=True)
class Expected:
    """What a batch must come to.

    Attributes:
        error: the fault that its checks find, if they do.
        descriptors: those that are run.
        stages: what each of them writes.
        memory: the image in the end, but for the records.
        records: empty where none are written.
    """

    config: CoreConfig
    error: Error | None
    descriptors: tuple[Descriptor, ...]
    stages: tuple[tuple[Write, ...], ...]
    memory: Halves
    records: tuple[Fields, ...]


def record(number: int, state: State, tag: int = 0, **fields: int | None) -> Fields:
    """The fields of a record; those left out are 0, and the clocks anything."""
    names = (
        f"{place.name}.{bits.name}" if bits else place.name for place in RECORD for bits in place.fields or (None,)
    )
    empty: dict[str, int | None] = dict.fromkeys(names, 0)
    given = {f"status.{name}" if f"status.{name}" in empty else name: value for name, value in fields.items()}
    return {**empty, "reserved": 0, "status.state": int(state), "number": number, "tag": tag, "clocks": None, **given}


def run(batch: Batch, config: CoreConfig) -> Expected:
    """What must come of ``batch``, if nothing goes wrong but what its checks find."""
    memory = exact(batch.memory)
    error = first_error(batch, config.address_bits)
    descriptors = batch.descriptors[: batch.count if error is None else error.number]
    stages: list[tuple[Write, ...]] = []
    records: list[Fields] = []
    for number, descriptor in enumerate(descriptors):
        writes, nonfinite = _execute(memory, batch.base, descriptor, config, error is None)
        for write in writes:
            memory.put(write.first, write.halves)
        stages.append(tuple(writes))
        counts = {f"{write.stream}_acknowledged": write.elements for write in writes}
        wrote = int(bool(writes))
        records.append(record(number, State.DONE, descriptor.tag, nonfinite=nonfinite, wrote=wrote, **counts))
    if error is not None and error.is_recorded:
        fields = {"fault": int(error.fault), "stream": SOURCES.index(error.stream), "fault_address": error.address}
        records.append(record(error.number, State.FAULTED, error.tag, **fields))
        records += [record(number, State.NOT_RUN) for number in range(len(records), batch.count)]
    return Expected(config, error, descriptors, tuple(stages), memory, tuple(records))


def _execute(
    memory: Halves, base: int, descriptor: Descriptor, config: CoreConfig, is_faultless: bool
) -> tuple[list[Write], int | None]:
    """What it writes, and whether a gradient is not finite."""
    used = sections(descriptor)
    parts = {name: memory.part((part.address - base) // 2, part.nbytes // 2) for name, part in used.items()}
    nonfinite: int | None = 0
    if descriptor.opcode is Opcode.COPY:
        results = {"wire": Halves(parts["p"].values.copy(), parts["p"].kinds.copy())}
    elif descriptor.opcode is Opcode.FILL:
        results = {"wire": exact(np.full(descriptor.length, descriptor.pattern, np.uint32))}
    elif descriptor.opcode is Opcode.IDENTIFY:
        results = {"wire": identity(config, descriptor.length, is_faultless)}
    elif descriptor.opcode is Opcode.BARRIER:
        results = {}
    else:
        results, nonfinite = _calculate(descriptor, {name: parts[name] for name in used if used[name].is_read})
    first = {name: (section.address - base) // 2 for name, section in used.items()}
    written = [name for name, section in used.items() if section.is_written]
    return [Write(name, first[name], results[name], descriptor.length) for name in written], nonfinite


def _calculate(descriptor: Descriptor, parts: dict[str, Halves]) -> tuple[dict[str, Halves], int | None]:
    nothing = np.zeros(descriptor.length, np.uint32)
    bits = dict.fromkeys("gmvp", nothing)
    unknown: dict[str, Flags] = dict.fromkeys("gmvp", nothing != 0)
    for name, part in parts.items():
        bits[name], unknown[name] = load(part, descriptor.g_format if name == "g" else 0)
    # The lanes take v as non-negative: of another one they make anything.
    unknown["v"] = unknown["v"] | np.signbit(bits["v"].view(np.float32)) & ~np.isnan(bits["v"].view(np.float32))
    operation, scalars = Operation(int(descriptor.opcode)), dict(descriptor.scalars)
    work = Work(operation, descriptor.first, descriptor.g_format, descriptor.wire_format, scalars, **bits)
    sure = has_nonfinite_gradient(replace(work, g=np.where(unknown["g"], np.uint32(0), work.g)))
    nonfinite = None if unknown["g"].any() and not sure else int(sure)
    any_unknown = np.any([*unknown.values()], axis=0)
    results = {
        name: store(result, descriptor.wire_format if name == "wire" else 0, any_unknown)
        for name, result in expected(work).items()
    }
    return results, nonfinite


def identity(config: CoreConfig, length: int, is_faultless: bool) -> Halves:
    """What an identify writes; of a batch with a fault its registers may already be there."""

    def packed(name: str, **fields: int) -> int:
        return sum(fields[bits.name] << bits.low for bits in REGISTERS[name].fields)

    size = {"lanes": config.lanes, "ports": config.ports, "port_bytes": config.beat_bytes}
    known = {
        "identity": IDENTITY,
        "version": VERSION,
        "build_id": config.build_id,
        "capabilities": packed("capabilities", **size, g_formats=7, wire_formats=7),
        "limits": packed("limits", burst_beats=config.burst_beats, address_bits=config.address_bits),
    }
    if is_faultless:
        known |= dict.fromkeys(("error", "error_number", "error_address"), 0)
    first = REGISTERS["identity"].offset
    words, kinds = np.zeros((2, max(length, STATUS_WORDS)), np.uint32)
    for register in registers(Access.STATUS):
        for word in range(register.words):
            at = (register.offset - first) // 4 + word
            words[at] = known.get(register.name, 0) >> 32 * word & 0xFFFF_FFFF
            kinds[at] = Kind.EXACT if register.name in known else Kind.UNKNOWN
    return Halves(exact(words[:length]).values, np.repeat(kinds[:length].astype(np.uint8), 2))
