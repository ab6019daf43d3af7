"""Which kinds of sections the operations of batches have, which of them an error struck, and whether that is all.

A section's kind is its data, its tail, where it lies, and how it divides into bursts. Each operation on each data that
it can have must be met with each tail, at each place and in each way of dividing; what these are together is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from benchmarks.table import print_table
from relay_eps.fpga.batch import Descriptor, Section, sections
from relay_eps.fpga.interface import USES, WIRE_HAS_FORMAT, Fault, Opcode
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface.descriptors import ALIGNMENT
from tests.hw.core.batches import PAGE, Batch
from tests.hw.lane.workload import FORMATS

TAILS = ("short", "no tail", "a tail of one", "a tail of all but one", "a tail")
PLACES = ("at 4 KiB", "a beat after 4 KiB", "a beat before 4 KiB", "across 4 KiB", "within 4 KiB")
#: A burst ends at every multiple of the longest one, and so at 4 KiB: the first and the last one can be cut by that.
BURSTS = ("one beat", "part of a burst", "exactly bursts", "first one cut", "last one cut", "first and last one cut")
#: The operations that use sections.
OPERATIONS = tuple(opcode for opcode in Opcode if opcode is not Opcode.BARRIER)
FORMAT_NAMES = tuple(fmt.value for fmt in FORMATS)
DESCRIPTOR_ERROR = f"{Fault.READ_RESPONSE.name} of a descriptor"
#: Faults of which any operation will do: one that could not be read is none yet, and a host that resets or a memory
#: that is silent does not choose.
ANY_OPERATION = (DESCRIPTOR_ERROR, Fault.TIMEOUT.name, Fault.RESET.name)


class Use(NamedTuple):
    """What an operation uses; ``data`` is the stream and what lies in its section."""

    operation: Opcode
    data: str
    tail: str
    place: str
    bursts: str


class Cell(NamedTuple):
    """One of the kinds that an operation must have been met with on some data."""

    operation: Opcode
    data: str
    kind: str


class Strike(NamedTuple):
    """A fault, and the operation that had it."""

    kind: str
    operation: Opcode


def strike(fault: Fault, source: str, operation: Opcode) -> Strike:
    """As it is counted: errors of descriptors apart from those of sections."""
    is_apart = fault is Fault.READ_RESPONSE and source == "descriptors"
    return Strike(DESCRIPTOR_ERROR if is_apart else fault.name, operation)


def coverage(batch: Batch, config: CoreConfig) -> Iterator[Use]:
    """Each section that each descriptor uses."""
    for descriptor in batch.descriptors:
        for stream, section in sections(descriptor).items():
            data = f"{stream} {_contents(descriptor, stream)}"
            tail, place = _tail(descriptor.length), _place(section)
            yield Use(descriptor.opcode, data, tail, place, _bursts(section, config))


def _contents(descriptor: Descriptor, stream: str) -> str:
    numbers = {"g": descriptor.g_format, "wire": descriptor.wire_format}
    return FORMAT_NAMES[numbers.get(stream, 0)] if descriptor.opcode <= Opcode.FETCH else "words"


def _tail(length: int) -> str:
    tails = {0: "no tail", 1: "a tail of one", 15: "a tail of all but one"}
    return "short" if length < 16 else tails.get(length % 16, "a tail")


def _place(section: Section) -> str:
    starts = {0: "at 4 KiB", ALIGNMENT: "a beat after 4 KiB", PAGE - ALIGNMENT: "a beat before 4 KiB"}
    crosses = section.address // PAGE != (section.end - 1) // PAGE
    return starts.get(section.address % PAGE, "across 4 KiB" if crosses else "within 4 KiB")


def _bursts(section: Section, config: CoreConfig) -> str:
    begin, end = section.address // config.beat_bytes, -(-section.end // config.beat_bytes)
    longest = config.burst_beats
    begins, ends = begin % longest == 0, end % longest == 0
    if end - begin == 1:
        return "one beat"
    if begins and ends:
        return "exactly bursts"
    if begin // longest == (end - 1) // longest:
        return "part of a burst"
    if begins or ends:
        return "last one cut" if begins else "first one cut"
    return "first and last one cut"


def data_of(opcode: Opcode) -> list[str]:
    """What can be in the sections that an operation uses."""
    reads, writes = USES[opcode]
    has_format = {"g"} | ({"wire"} if opcode in WIRE_HAS_FORMAT else set())
    return [
        f"{stream} {contents}"
        for stream in dict.fromkeys((*reads, *writes))
        for contents in (("words",) if opcode > Opcode.FETCH else FORMAT_NAMES[: 3 if stream in has_format else 1])
    ]


def cells(uses: Iterable[Use]) -> set[Cell]:
    """Those that these are."""
    return {Cell(use.operation, use.data, kind) for use in uses for kind in (use.tail, use.place, use.bursts)}


class Coverage:
    """What was met so far.

    Attributes:
        uses, strikes: how often each was met.
        missed, unstruck: what is still to be met; these sets shrink.
    """

    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self.uses: Counter[Use] = Counter()
        self.strikes: Counter[Strike] = Counter()
        kinds = TAILS + PLACES + BURSTS
        self.missed = {Cell(opcode, data, kind) for opcode in OPERATIONS for data in data_of(opcode) for kind in kinds}
        # Each operation that reads has had a read's error, and each that writes a write's.
        self.unstruck = {
            strike(fault, "", opcode)
            for opcode in OPERATIONS
            for fault, streams in zip((Fault.READ_RESPONSE, Fault.WRITE_RESPONSE), USES[opcode], strict=True)
            if streams
        }

    def has_missed(self, batch: Batch) -> bool:
        """Whether a batch has any of what is missed."""
        return not self.missed.isdisjoint(cells(coverage(batch, self._config)))

    def add(self, batch: Batch) -> None:
        """A batch was run."""
        uses = Counter(coverage(batch, self._config))
        self.uses += uses
        self.missed -= cells(uses)

    def add_strike(self, struck: Strike) -> None:
        """An operation had a fault."""
        self.strikes[struck] += 1
        self.unstruck.discard(struck)

    def unmet(self) -> list[str]:
        """Of the faults for which any operation will do."""
        met = {struck.kind for struck in self.strikes}
        return [kind for kind in ANY_OPERATION if kind not in met]

    def print(self) -> None:
        """As tables: sections, and operations struck, by operation; - is what there cannot be."""
        every = list(dict.fromkeys(data for opcode in OPERATIONS for data in data_of(opcode)))
        count: Counter[tuple[str, Opcode]] = Counter()
        for use, number in self.uses.items():
            for kind in use[1:]:
                count[kind, use.operation] += number
        rows = [
            [kind, *(str(count[kind, opcode] or ("-" if kind in every else 0)) for opcode in OPERATIONS)]
            for kind in (*every, *TAILS, *PLACES, *BURSTS)
        ]
        head = [opcode.name.lower() for opcode in Opcode]
        print_table("sections used", ["", *(opcode.name.lower() for opcode in OPERATIONS)], rows)
        kinds = dict.fromkeys(struck.kind for struck in sorted(self.strikes))
        struck_rows = [[kind, *(str(self.strikes[Strike(kind, opcode)] or "-") for opcode in Opcode)] for kind in kinds]
        print_table("operations struck", ["", *head], struck_rows)
