"""Unpack: a section's elements come out in rows, in order, from as many beats as hold it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.core.sections import LENGTH_BITS
from relay_eps_hw.core.shape import BEAT_BYTES
from relay_eps_hw.core.unpack import Steps, Unpack
from relay_eps_hw.faults import Faults
from relay_eps_hw.lane.beat import LANE_COUNTS
from tests.hw.faulty import fault_names

CONFIGS = [(beat_bytes, lanes, half) for beat_bytes in BEAT_BYTES for lanes in LANE_COUNTS for half in (False, True)]
#: One for each way in which the widths can differ; between them every fault can be seen.
FAULTY = [(8, 1, True), (16, 2, False), (16, 4, True), (8, 16, True), (8, 16, False)]


@dataclass(frozen=True)
class Section:
    """Elements of a section, and whether they have 16 bits."""

    elements: tuple[int, ...]
    half: bool

    @property
    def size(self) -> int:
        """Bytes of an element in memory."""
        return 2 if self.half else 4

    def beats(self, beat_bytes: int) -> int:
        """How many hold it."""
        return math.ceil(len(self.elements) * self.size / beat_bytes)

    def rows(self, lanes: int) -> int:
        """How many hold it."""
        return math.ceil(len(self.elements) / lanes)

    def clocks(self, beat_bytes: int, lanes: int) -> int:
        """How many it takes, one for each beat or row, whichever are more."""
        return max(self.beats(beat_bytes), self.rows(lanes))

    def in_memory(self, dice: random.Random, beat_bytes: int) -> list[int]:
        """Its beats, with anything beyond its end."""
        content = b"".join(element.to_bytes(self.size, "little") for element in self.elements)
        content += dice.randbytes(-len(content) % beat_bytes)
        return [int.from_bytes(content[at : at + beat_bytes], "little") for at in range(0, len(content), beat_bytes)]

    def in_rows(self, lanes: int) -> list[list[int]]:
        """Its rows, the last one only to its end."""
        return [list(self.elements[at : at + lanes]) for at in range(0, len(self.elements), lanes)]


def sections_about(dice: random.Random, beat_bytes: int, lanes: int, half: bool) -> list[Section]:
    """In any order, with lengths from one less to one more than beats and rows hold."""
    found = []
    for mode in (False, True) if half else (False,):
        beat = beat_bytes // (2 if mode else 4)
        wide, narrow = max(beat, lanes), min(beat, lanes)
        edges = {edge + at for edge in (narrow, wide - narrow, wide, wide + narrow, 2 * wide) for at in (-1, 0, 1)}
        lengths = {1, 2, *edges, dice.randrange(1, 3 * wide)}
        for length in lengths:
            if length > 0:
                elements = tuple(dice.getrandbits(16 if mode else 32) for _ in range(length))
                found.append(Section(elements, mode))
    dice.shuffle(found)
    return found


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        payloads: those that left.
        clocks: from the first one's leaving to the last one's, both counted.
        latency: clocks from the start to the first one's leaving.
        taken: how many beats or rows went in.
        broken: what was seen that no stream may do.
    """

    payloads: list[Any] = field(default_factory=list)
    clocks: int = 0
    latency: int = 0
    taken: int = 0
    broken: set[str] = field(default_factory=set)


async def move(
    ctx: SimulatorContext,
    unit: Any,
    sections: list[Section],
    sent: list[Any],
    wanted: int,
    dice: random.Random,
    late: float,
) -> Outcome:
    """Put sections and payloads into ``unit`` until ``wanted`` have left it, and a little longer."""
    outcome = Outcome()
    queues = [(unit.sections, [{"less": len(section.elements) - 1, "half": section.half} for section in sections])]
    queues.append((unit.i, sent))
    at = [0] * len(queues)
    clock = 0
    held = None
    beyond = 8
    first = 0
    # A faulty unit may wait for ever.
    limit = 100 + round(12 * (wanted + len(sent) + len(sections)))
    while beyond and clock < limit:
        for number, (queue, payloads) in enumerate(queues):
            # What is offered stays; what is not offered is not there.
            if not ctx.get(queue.valid) and at[number] < len(payloads) and dice.random() >= late:
                ctx.set(queue.payload, payloads[at[number]])
                ctx.set(queue.valid, 1)
        offered = ctx.get(unit.o.valid)
        ctx.set(unit.o.ready, dice.random() >= late)
        if offered != ctx.get(unit.o.valid):
            outcome.broken.add("valid depends on ready")
        payload, ready = ctx.get(unit.o.payload.as_value()), ctx.get(unit.o.ready)
        if held is not None and (not offered or payload != held):
            outcome.broken.add("a payload was offered and did not stay")
        held = payload if offered and not ready else None
        if offered and ready:
            outcome.payloads.append(payload)
            first = first if len(outcome.payloads) > 1 else clock
            outcome.clocks, outcome.latency = clock - first + 1, first
        went = [ctx.get(queue.valid) and ctx.get(queue.ready) for queue, _ in queues]
        await ctx.tick()
        for number, (queue, _) in enumerate(queues):
            if went[number]:
                at[number] += 1
                ctx.set(queue.valid, 0)
        clock += 1
        beyond -= len(outcome.payloads) >= wanted
    outcome.taken = at[1]
    if at[0] < len(sections):
        outcome.broken.add("a section was not taken")
    return outcome


def simulate(
    unit: Any,
    sections: list[Section],
    sent: list[Any],
    wanted: int,
    dice: random.Random,
    *,
    late: float = 0.0,
    fault: str | None = None,
) -> Outcome:
    """What comes of `move`, after a reset amid something else; with the unit's fault of this name, if there is one."""
    outcomes: list[Outcome] = []
    reset = Signal()

    async def bench(ctx: SimulatorContext) -> None:
        if fault is not None:
            ctx.set(unit.faults.select, unit.faults.number(fault))
        for queue, payloads in ((unit.sections, [{"less": dice.randrange(98), "half": 0}]), (unit.i, sent)):
            ctx.set(queue.payload, dice.choice(payloads))
            ctx.set(queue.valid, 1)
        ctx.set(unit.o.ready, 1)
        for _ in range(dice.randrange(6)):
            await ctx.tick()
        ctx.set(reset, 1)
        await ctx.tick()
        for signal in (reset, unit.sections.valid, unit.i.valid):
            ctx.set(signal, 0)
        outcomes.append(await move(ctx, unit, sections, sent, wanted, dice, late))

    simulator = Simulator(ResetInserter(reset)(unit))
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return outcomes[0]


def mismatch(
    unit: Unpack,
    beat_bytes: int,
    sections: list[Section],
    dice: random.Random,
    *,
    late: float,
    fault: str | None = None,
) -> str | None:
    """What is wrong about the rows of these sections, or about how they came; None for nothing."""
    lanes = len(unit.o.payload)
    rows = [row for section in sections for row in section.in_rows(lanes)]
    beats = [beat for section in sections for beat in section.in_memory(dice, beat_bytes)]
    # More beats wait behind the last section; they are to stay where they are.
    more = [dice.getrandbits(8 * beat_bytes) for _ in range(3)]
    outcome = simulate(unit, sections, beats + more, len(rows), dice, late=late, fault=fault)
    got = [[payload >> 32 * lane & 0xFFFFFFFF for lane in range(lanes)] for payload in outcome.payloads]
    if len(got) != len(rows):
        return f"{len(got)} rows and not {len(rows)}"
    for number, (is_row, row) in enumerate(zip(got, rows, strict=True)):
        if is_row[: len(row)] != row:
            return f"row {number} is {is_row} and not {row}"
    if outcome.taken != len(beats):
        return f"{outcome.taken} beats were taken and not {len(beats)}"
    if outcome.broken:
        return ", ".join(outcome.broken)
    clocks = sum(section.clocks(beat_bytes, lanes) for section in sections)
    if not late and outcome.latency + outcome.clocks != clocks + 2:
        return f"it took {outcome.latency + outcome.clocks} clocks and not {clocks} and 2 to begin with"
    return None


@pytest.mark.parametrize(("beat_bytes", "lanes", "half"), CONFIGS)
def test_rows_hold_the_sections_elements_in_order_and_without_a_gap(seed: int, beat_bytes: int, lanes: int, half: bool):
    dice = random.Random(seed)
    sections = sections_about(dice, beat_bytes, lanes, half)
    assert mismatch(Unpack(beat_bytes, lanes, half=half), beat_bytes, sections, dice, late=0) is None


@pytest.mark.parametrize(("beat_bytes", "lanes", "half"), CONFIGS)
def test_rows_are_the_same_however_the_streams_wait(seed: int, beat_bytes: int, lanes: int, half: bool):
    dice = random.Random(seed)
    sections = sections_about(dice, beat_bytes, lanes, half)
    assert mismatch(Unpack(beat_bytes, lanes, half=half), beat_bytes, sections, dice, late=0.4) is None


def test_without_half_mode_the_bit_is_ignored(seed: int):
    dice = random.Random(seed)
    unit = Unpack(16, 2, half=False)
    outcome = simulate(unit, [Section((0, 0, 0), True)] * 2, [dice.getrandbits(128) for _ in range(3)], 4, dice)
    assert (len(outcome.payloads), outcome.taken) == (4, 2)


@pytest.mark.parametrize(("beat_bytes", "lanes", "half"), CONFIGS)
def test_steps_are_counted_for_the_longest_sections_too(seed: int, beat_bytes: int, lanes: int, half: bool):
    dice = random.Random(seed)
    unit = Steps(beat_bytes, lanes, half=half)
    longest = (1 << LENGTH_BITS) - 1
    lengths = [1, longest, longest - 1, longest + 1 - 64, longest - 64, *(dice.randrange(1, longest) for _ in range(8))]

    async def bench(ctx: SimulatorContext) -> None:
        ctx.set(unit.sections.valid, 1)
        for length in lengths:
            for mode in (0, 1) if half else (0,):
                ctx.set(unit.sections.payload, {"less": length - 1, "half": mode})
                await ctx.tick()
                step = min(beat_bytes // (2 if mode else 4), lanes)
                assert ctx.get(unit.some)
                assert (ctx.get(unit.past) + -(-length // step)) % (1 << len(unit.past)) == 0
                assert ctx.get(unit.last) == (length <= step)
                # So that the next one enters, without as many steps.
                ctx.set(unit.some, 0)

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def faults_of(make: Callable[..., Any]) -> list[str]:
    """The faults that a component has in it, in any of the `FAULTY` configurations."""
    names: set[str] = set()
    for beat_bytes, lanes, half in FAULTY:
        names.update(fault_names(partial(make, beat_bytes, lanes, half=half)))
    return sorted(names)


def is_noticed(make: Callable[..., Any], mismatch: Callable[..., str | None], seed: int, fault: str) -> bool:
    """Whether in any of the `FAULTY` configurations ``mismatch`` sees that a component has this fault."""
    dice = random.Random(seed)

    def noticed(beat_bytes: int, lanes: int, half: bool) -> bool:
        unit = make(beat_bytes, lanes, half=half, faults=Faults())
        sections = sections_about(dice, beat_bytes, lanes, half)
        return mismatch(unit, beat_bytes, sections, dice, late=0.4, fault=fault) is not None

    return any(noticed(*config) for config in FAULTY)


@pytest.mark.parametrize("fault", faults_of(Unpack))
def test_each_fault_is_noticed(seed: int, fault: str):
    assert is_noticed(Unpack, mismatch, seed, fault)


def test_there_are_faults_to_notice():
    assert len(faults_of(Unpack)) >= 5


@pytest.mark.parametrize(("beat_bytes", "lanes"), [(4, 1), (128, 1), ("8", 1), (8, 3), (8, 0), (8, 32), (8, True)])
def test_widths_that_no_core_has_are_refused(beat_bytes: Any, lanes: Any):
    with pytest.raises(ValueError, match="are not supported: use one of"):
        Unpack(beat_bytes, lanes, half=False)
