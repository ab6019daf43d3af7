"""What is wrong with what a core has made of a batch: with memory, with records and with the error registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relay_eps.fpga.batch import Section, sections
from relay_eps.fpga.interface import Fault, State
from relay_eps_hw.interface.descriptors import ALIGNMENT, RECORD, SOURCES, STREAMS
from relay_eps_hw.interface.registers import REGISTERS
from tests.hw.core.batches import Batch
from tests.hw.core.reference import Expected, Fields, Flags, exact, matches, record


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
