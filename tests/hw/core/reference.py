"""What a core must make of a batch: its checks in their order, and its arithmetic by the golden model.

A result that is NaN is any NaN, and so are all copies of it; counters are anything. So memory is kept in halves of
words, and with each half what is known of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.formats import Format, widen
from relay_eps.fpga.batch import Descriptor, Section, sections
from relay_eps.fpga.interface import Fault, Opcode, State
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface.descriptors import ALIGNMENT, RECORD, SOURCES, STREAMS
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


@dataclass(frozen=True)
class Trouble:
    """What was done to a batch while it ran; None for what is not known.

    Attributes:
        stream: what met it, one of `SOURCES`; None for a reset.
        address: one that lies in the burst.
        number: the place of the descriptor whose burst it was.
    """

    fault: Fault
    stream: str | None = None
    address: int | None = None
    number: int | None = None


def fields_of(row: bytes) -> dict[str, int]:
    """A record's places and fields by name, and as "reserved" whether any other bit is set."""
    found: dict[str, int] = {}
    rest = int.from_bytes(row, "little")
    for place in RECORD:
        value = int.from_bytes(row[place.offset : place.end], "little")
        names = [(f"{place.name}.{bits.name}", bits.low, bits.width) for bits in place.fields]
        for name, low, width in names or [(place.name, 0, place.width)]:
            found[name] = value >> low & (1 << width) - 1
            rest ^= found[name] << low + 8 * place.offset
    return {**found, "reserved": int(rest != 0)}


def check_outcome(
    batch: Batch, expected: Expected, memory: NDArray[np.uint8], registers: Mapping[str, int] | None = None
) -> list[str]:
    """What is wrong with ``memory``, the whole image after the batch, and with the error registers where given."""
    got = np.ascontiguousarray(memory).view(np.uint16)
    right = matches(got, expected.memory) | _in_records(batch, expected)
    wrong = _memory_differences(batch, expected, got, right)
    for number, fields in enumerate(_records(batch, memory) if expected.records else ()):
        wrong += _differences(f"record {number}", fields, expected.records[number])
        # A barrier may take none.
        if not fields["clocks"] and number < len(expected.stages) and expected.stages[number]:
            wrong.append(f"record {number}: it took no clocks")
    error = expected.error
    if error is None:
        return wrong + _register_differences(registers, Fault.NONE, STREAMS[0])
    return wrong + _register_differences(registers, error.fault, error.stream, error.number, error.address)


def check_fault_outcome(
    batch: Batch,
    expected: Expected,
    memory: NDArray[np.uint8],
    trouble: Trouble,
    registers: Mapping[str, int] | None = None,
    *,
    records_written: bool = True,
) -> list[str]:
    """As `check_outcome`, where ``trouble`` came while the batch ran; ``expected`` is without it.

    ``records_written`` is False where the writes of records may have failed too: some may then be as the host left
    them.
    """
    got = np.ascontiguousarray(memory).view(np.uint16)
    records = _records(batch, memory)
    wrong: list[str] = []
    right = matches(got, exact(batch.memory)) | _in_records(batch, expected)
    for fields, stage in zip(records, expected.stages, strict=True):
        for write in stage:
            there = slice(write.first, write.first + len(write.halves.values))
            new = matches(got[there], write.halves)
            is_pending = fields["status.state"] == State.PENDING
            if fields["status.state"] == State.DONE:
                right[there] = new
            elif fields["status.wrote"] or is_pending:
                sure = fields[f"{write.stream}_acknowledged"] * (len(new) // write.elements)
                right[there] = np.where(np.arange(len(new)) < sure, new, right[there] | new)
    wrong += _memory_differences(batch, expected, got, right)

    states = [fields["status.state"] for fields in records]
    ended = [number for number, state in enumerate(states) if state != State.DONE]
    faulted = [number for number, state in enumerate(states) if state == State.FAULTED]
    # A reset may come when all is done but the last records.
    is_late = trouble.fault == Fault.RESET and not ended
    if len(faulted) > 1 or (records_written and not faulted and not is_late):
        wrong.append(f"records {faulted} have the fault: it is one's")
    for number, fields in enumerate(records):
        if states[number] == State.PENDING and not records_written and not any(fields.values()):
            continue
        wrong += _differences(f"record {number}", fields, _wanted(number, fields, expected, trouble))
    for number in faulted:
        wrong += _owner_differences(number, records[number], expected, trouble)
        if trouble.stream is None and ended and number != ended[0]:
            wrong.append(f"record {number} has the fault, and record {ended[0]} is the first that is not done")
    owner, address = (faulted[0], records[faulted[0]]["fault_address"]) if faulted else (trouble.number, None)
    dead = 1 << expected.config.port_of.get(trouble.stream or "", 0) if trouble.fault == Fault.TIMEOUT else 0
    return wrong + _register_differences(registers, trouble.fault, trouble.stream, owner, address, dead)


def _wanted(number: int, fields: Mapping[str, int], expected: Expected, trouble: Trouble) -> Fields:
    """What a record must be by its own state; what may be anything within limits is as it is where it keeps them."""
    state, stage, tag = fields["status.state"], expected.stages[number], expected.descriptors[number].tag
    if state == State.DONE:
        return expected.records[number]
    counts: dict[str, int | None] = {
        f"{write.stream}_acknowledged": min(fields[f"{write.stream}_acknowledged"], write.elements) for write in stage
    }
    free: dict[str, int | None] = {"nonfinite": None}
    if state == State.FAULTED:
        source = None if trouble.stream is None else SOURCES.index(trouble.stream)
        wrote = 1 if any(counts.values()) else min(fields["status.wrote"], len(stage))
        # A descriptor that was not read has no tag.
        if trouble.stream in (None, "descriptors"):
            tag = fields["tag"] and tag
        free |= {"fault": int(trouble.fault), "stream": source, "fault_address": None, "wrote": wrote}
        return record(number, State.FAULTED, tag, **free, **counts)
    if state == State.CUT_SHORT and stage:
        return record(number, State.CUT_SHORT, tag, wrote=1, **free, **counts)
    return record(number, State.NOT_RUN, fields["tag"] and tag, **free)


def _owner_differences(number: int, fields: Mapping[str, int], expected: Expected, trouble: Trouble) -> Iterator[str]:
    """Whether the descriptor that has the fault is the one whose burst it was, and the address the burst's."""
    if trouble.number not in (None, number):
        yield f"record {number} has the fault: it is {trouble.number}'s"
    if trouble.address is None:
        return
    config, at = expected.config, fields["fault_address"]
    if at % config.beat_bytes or not 0 <= trouble.address - at < config.beat_bytes * config.burst_beats:
        yield f"record {number}: no burst at {at:#x} contains {trouble.address:#x}"
    if trouble.stream in STREAMS:
        part = sections(expected.descriptors[number]).get(trouble.stream, Section(0, 0, False, False))
        uses = {Fault.READ_RESPONSE: part.is_read, Fault.WRITE_RESPONSE: part.is_written}.get(trouble.fault, True)
        if not uses or not part.address <= trouble.address < -(-part.end // ALIGNMENT) * ALIGNMENT:
            yield f"record {number} has the fault: it does not use {trouble.stream} at {trouble.address:#x} so"


def _in_records(batch: Batch, expected: Expected) -> Flags:
    inside = np.zeros(len(batch.memory) // 2, np.bool_)
    at = (batch.completion_address - batch.base) // 2
    inside[at : at + len(expected.records) * RECORD.size // 2] = bool(expected.records)
    return inside


def _records(batch: Batch, memory: NDArray[np.uint8]) -> list[dict[str, int]]:
    at = batch.completion_address - batch.base
    rows = memory[at : at + RECORD.size * batch.count].reshape(batch.count, RECORD.size)
    return [fields_of(row.tobytes()) for row in rows]


def _differences(name: str, got: Mapping[str, int], wanted: Fields) -> list[str]:
    return [
        f"{name}: {field} is {got[field]:#x}, not {value:#x}"
        for field, value in wanted.items()
        if value is not None and got[field] != value
    ]


def _register_differences(
    got: Mapping[str, int] | None,
    fault: Fault,
    stream: str | None,
    number: int | None = None,
    address: int | None = None,
    dead_ports: int = 0,
) -> list[str]:
    source = None if stream is None else SOURCES.index(stream)
    values = {"fault": int(fault), "stream": source, "dead_ports": dead_ports}
    wanted: dict[str, int | None] = {"error_number": number, "error_address": address}
    found = dict(got or {})
    for bits in REGISTERS["error"].fields if "error" in found else ():
        found[f"error.{bits.name}"] = (found["error"] & bits.mask) >> bits.low
        wanted[f"error.{bits.name}"] = values[bits.name]
    return _differences("registers", found, {name: value for name, value in wanted.items() if name in found})


def _memory_differences(batch: Batch, expected: Expected, got: NDArray[np.uint16], right: Flags) -> list[str]:
    """A sentence for each write that last gave halves which are wrong, and one for all that nobody writes."""
    if right.all():
        return []
    owner = np.full(len(got), -1)
    writes = [(number, write) for number, stage in enumerate(expected.stages) for write in stage]
    for place, (_, write) in enumerate(writes):
        owner[write.first : write.first + len(write.halves.values)] = place
    sentences: list[str] = []
    for place in np.unique(owner[~right]).tolist():
        halves = np.flatnonzero(~right & (owner == place))
        at = int(halves[0])
        name = "memory that nothing writes"
        if place >= 0:
            number, write = writes[place]
            descriptor = expected.descriptors[number]
            name = f"{write.stream} of descriptor {number} ({descriptor.opcode.name}, {descriptor.length} long)"
        sentences.append(
            f"{name}: {len(halves)} halves of words differ; the one at {batch.base + 2 * at:#x} is {got[at]:#06x}, "
            f"not {expected.memory.values[at]:#06x}"
        )
    return sentences
