"""How fast a core is: clocks of a batch and bytes of a parameter, from its configuration alone.

A model, not a measurement. Each clock a core takes a row of one element a lane, and each direction of each port moves
a beat; a memory with one budget moves one beat a clock in both directions together. Whichever needs the most clocks is
the `Estimate.limit`. To it are added what the pipeline costs: the clock between two operations, descriptors and records
on port 0, filling and draining, and, for short layers, the few descriptors that can be under way at once.
`benchmarks/core.py` holds it against the simulated core, from which its few constants are; of batches that take less
than a thousand clocks, or of layers so short that they wait for descriptors, it tells no more than the order. What a
board's memory gives is in `BOARDS`, and is not measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.shape import SLOTS
from relay_eps_hw.interface.codes import Opcode
from relay_eps_hw.interface.descriptors import DESCRIPTOR, RECORD, STREAMS
from relay_eps_hw.interface.operations import LANE_OPERATIONS, USES, WIRE_HAS_FORMAT, WIRE_IS_OPTIONAL

#: Bytes of an element by format, as descriptors number them: fp32, bf16, fp16.
FORMAT_BYTES = (4, 2, 2)
#: Clocks of a row's way through queues and shallow lanes.
PIPELINE = 25
#: Clocks from a descriptor's last response until another one has its slot.
RETIRE = 36
#: Clocks from a beat's leaving its queue to the address that takes its place.
TURNAROUND = 2


class Bound(Enum):
    """What a batch waits for."""

    LANES = "lanes"
    PORT = "a port"
    LATENCY = "the memory's latency"
    DESCRIPTORS = "descriptors"


@dataclass(frozen=True)
class Memory:
    """Behind each port.

    Attributes:
        latency: clocks from an address to its data, and from data to its response.
        is_shared: both directions of a port have one beat a clock together; otherwise one each.
    """

    latency: int = 100
    is_shared: bool = False


@dataclass(frozen=True)
class Work:
    """A batch of equal operations on layers of their own; ValueError for what the lanes do not do.

    Attributes:
        operation: one of the lanes': fold, apply, fold and apply, accumulate, fetch.
        length: elements of a layer.
        first: an accumulate begins its sum.
        g_format, wire_format: 0 fp32, 1 bf16, 2 fp16; without a wire format no wire copy is written.
    """

    operation: Opcode
    length: int
    descriptors: int = 1
    first: bool = False
    g_format: int = 0
    wire_format: int | None = None

    def __post_init__(self) -> None:
        if self.operation not in LANE_OPERATIONS:
            allowed = ", ".join(operation.name for operation in LANE_OPERATIONS)
            raise ValueError(f"{self.operation!r} is no operation of the lanes: use one of {allowed}")
        if self.length < 1 or self.descriptors < 1:
            raise ValueError(f"{self.descriptors} operations on {self.length} elements are none: use 1 or more")
        if self.wire_format is None and self.operation is Opcode.FETCH:
            raise ValueError("a fetch needs a wire format")

    @property
    def reads(self) -> dict[str, int]:
        """Bytes of an element by stream that is read."""
        names = USES[self.operation][0]
        if self.operation is Opcode.ACCUMULATE and self.first:
            names = ("g",)
        return {name: self._bytes(name) for name in names}

    @property
    def writes(self) -> dict[str, int]:
        """Bytes of an element by stream that is written."""
        names = USES[self.operation][1]
        if self.operation in WIRE_IS_OPTIONAL and self.wire_format is None:
            names = tuple(name for name in names if name != "wire")
        return {name: self._bytes(name) for name in names}

    def _bytes(self, stream: str) -> int:
        if stream == "g":
            return FORMAT_BYTES[self.g_format]
        if stream == "wire" and self.operation in WIRE_HAS_FORMAT:
            return FORMAT_BYTES[self.wire_format or 0]
        return 4

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes that are moved for an element, in both directions."""
        return sum(self.reads.values()) + sum(self.writes.values())

    def rows(self, lanes: int) -> int:
        """Rows of the lanes that a layer takes."""
        return -(-self.length // lanes)


@dataclass(frozen=True)
class Estimate:
    """What a batch takes.

    Attributes:
        limit: clocks without which there is no moving the data: no core of these lanes and ports takes fewer.
        clocks: from the first to the last beat of data, both counted.
        bound: what keeps it from being faster.
        bytes_per_parameter: of data.
    """

    limit: int
    clocks: int
    bound: Bound
    bytes_per_parameter: int

    @property
    def share(self) -> float:
        """Of the limit's speed."""
        return self.limit / self.clocks


def beats(config: CoreConfig, work: Work) -> tuple[tuple[int, int], ...]:
    """Beats of one operation that each port reads and writes."""
    found = [[0, 0] for _ in range(config.ports)]
    for way, streams in enumerate((work.reads, work.writes)):
        for name, size in streams.items():
            found[config.port_of[name]][way] += -(-work.length * size // config.beat_bytes)
    return tuple((read, written) for read, written in found)


def port_clocks(counts: tuple[tuple[int, int], ...], memory: Memory) -> int:
    """Clocks in which the busiest port moves these beats."""
    return max(sum(count) if memory.is_shared else max(count) for count in counts)


def limit(config: CoreConfig, work: Work, memory: Memory) -> int:
    """Clocks that one operation takes at least."""
    return max(work.rows(config.lanes), port_clocks(beats(config, work), memory))


def check_clocks(work: Work, others: int) -> int:
    """Clocks in which a descriptor is read, compared with so many that are under way before it, and ordered."""
    words = DESCRIPTOR.size // 8
    used = [number for number, name in enumerate(STREAMS) if name in work.reads or name in work.writes]
    compared = sum(others * len(STREAMS) + number + 1 for number in used)
    return words + compared + 2 * len(STREAMS) + 3


def estimate(config: CoreConfig, work: Work, memory: Memory) -> Estimate:
    """What a batch takes on a core whose memory answers so."""
    count, least, counts = work.descriptors, limit(config, work, memory), beats(config, work)
    (read, written), *others = counts
    own = ((read + DESCRIPTOR.size // config.beat_bytes, written + RECORD.size // config.beat_bytes), *others)
    # The pipeline is filled once, and the last burst of each stream of a port goes when all of it is there. With one
    # budget reads run ahead while nothing is written, and the port is busy to the end.
    fill = PIPELINE + config.burst_beats * _together(config, work.writes)
    drained = 0 if memory.is_shared and least > work.rows(config.lanes) else fill
    way = 2 * memory.latency + fill + least
    ways = {
        Bound.LANES: float(count * (work.rows(config.lanes) + 1) + fill),
        Bound.PORT: float(count * port_clocks(own, memory) + drained),
        Bound.LATENCY: _latency_clocks(config, work, counts, memory) + fill,
        Bound.DESCRIPTORS: _turns(work, way) + least + drained,
    }
    bound = max(ways, key=lambda each: ways[each])
    return Estimate(
        limit=least * count,
        clocks=round(ways[bound]),
        bound=bound,
        bytes_per_parameter=work.bytes_per_parameter,
    )


def _turns(work: Work, way: int) -> float:
    """Clocks from the first descriptor's data to the last one's, where each has a slot from its check to its record.

    A descriptor waits for the slot of the one `SLOTS` before it, or for the check of the one before it; the shorter the
    way, the fewer there are to be compared with.
    """
    turn = (check_clocks(work, SLOTS - 2) + way + RETIRE) / SLOTS
    checked = max(check_clocks(work, 1), min(check_clocks(work, SLOTS - 1), turn))
    return checked * min(work.descriptors - 1, SLOTS - 1) + max(turn, checked) * max(work.descriptors - SLOTS, 0)


def _together(config: CoreConfig, streams: Iterable[str]) -> int:
    """Of these streams, how many the port has that has the most of them."""
    ports = [config.port_of[name] for name in streams]
    return max(ports.count(port) for port in ports)


def _latency_clocks(config: CoreConfig, work: Work, counts: tuple[tuple[int, int], ...], memory: Memory) -> float:
    """Clocks that the queues allow: a stream has so many beats under way, a port so many bursts."""
    turn = memory.latency + config.burst_beats * _together(config, work.reads) + TURNAROUND
    stream = max(-(-work.length * size // config.beat_bytes) for size in work.reads.values()) / config.read_rows
    port = max(max(count) for count in counts) / (config.outstanding * config.burst_beats)
    turns = work.descriptors * max(stream, port)
    return turn * max(turns - 1, 0.0) + config.read_rows * min(turns, 1.0)


@dataclass(frozen=True)
class BoardMemory:
    """A board's memory, and the cores that are meant for it.

    Attributes:
        name: as its maker calls it.
        core: of each of the ``cores``.
        megahertz: the clock that a core is meant to have there; of no placed design.
        peak: GB/s of all the memory, by the data sheet.
        usable: GB/s that others have found to remain; None where none was found, and the peak has to do.
        per_port: GB/s, at most, of the bank that a port has to itself; None where all ports share all of the memory.
    """

    name: str
    core: CoreConfig
    cores: int
    megahertz: int
    peak: float
    usable: float | None = None
    per_port: float | None = None

    @property
    def ports(self) -> int:
        """Of all cores."""
        return self.cores * self.core.ports

    def parameters_per_second(self, work: Work) -> float:
        """What no batch of this operation exceeds: by lanes and ports at the clock, and by the memory's GB/s.

        A model throughout: clocks are intended, and no board was measured.
        """
        length = 1 << 20
        wide = replace(work, length=length)
        clocked = self.cores * self.megahertz * 1e6 * length / limit(self.core, wide, Memory())
        by_memory = 1e9 * (self.usable or self.peak) / work.bytes_per_parameter
        if self.per_port is not None:
            bytes_of = dict.fromkeys(range(self.core.ports), 0)
            for streams in (work.reads, work.writes):
                for name, size in streams.items():
                    bytes_of[self.core.port_of[name]] += size
            by_memory = min(by_memory, self.cores * 1e9 * self.per_port / max(bytes_of.values()))
        return min(clocked, by_memory)


BOARDS = (
    BoardMemory("PYNQ-Z2", CoreConfig(1, 4, 8, address_bits=32), 1, 100, peak=2.1, usable=1.6),
    BoardMemory("KV260", CoreConfig(4, 4, 16, address_bits=40), 1, 250, peak=19.2, usable=14.0),
    BoardMemory("ZCU104", CoreConfig(4, 4, 16, address_bits=40), 1, 250, peak=19.2, usable=14.0),
    BoardMemory("Alveo U250", CoreConfig(16, 4, 64, burst_beats=64), 1, 250, peak=77.0, per_port=19.25),
    BoardMemory("Alveo U55C", CoreConfig(8, 4, 32, burst_beats=64), 8, 250, peak=460.0, per_port=14.375),
)
