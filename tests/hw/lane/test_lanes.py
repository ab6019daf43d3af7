"""What is around the lanes: streams, scalars' timing, masks and flags, with a stand-in for the arithmetic."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from amaranth.sim import Simulator

from relay_eps_hw.floats.formats import FP32
from relay_eps_hw.lane.beat import LANE_COUNTS, SCALARS, SIGNED, Operation
from relay_eps_hw.lane.lanes import TURNAROUND, Lanes
from relay_eps_hw.lane.timing import Timing
from tests.hw.lane.stand_in import LONG, SHORT, SOURCES, StandInLane


@dataclass
class Expected:
    """A beat as it must come out."""

    beat: dict[str, Any]
    nonfinite: bool
    outside: bool


def make_beats(dice: random.Random, lanes: int, count: int) -> list[Expected]:
    """Folds of random lengths with new scalars each, some of them bad, and poisoned elements under the mask."""
    beats: list[Expected] = []
    while len(beats) < count:
        scalars = {name: dice.getrandbits(23) | dice.randrange(1, 255) << 23 for name in SCALARS}
        outside = dice.random() < 0.2
        if outside:
            scalars[dice.choice([name for name in SCALARS if name not in SIGNED])] |= 1 << 31
        nonfinite = False
        length = dice.choice([1, 1, 2, 5, 17])
        for number in range(length):
            mask = dice.getrandbits(lanes)
            elements = [{name: dice.getrandbits(32) for name in "gmvp"} for _ in range(lanes)]
            for lane, element in enumerate(elements):
                if dice.random() < 0.05:
                    element["g"] = FP32.infinity
                is_finite = element["g"] >> 23 & 255 != 255
                nonfinite |= bool(mask >> lane & 1) and not is_finite
            beat = {
                "operation": Operation.FOLD_APPLY,
                "first": 1,
                "last": number == length - 1,
                "g_format": 0,
                "w_format": 0,
                "scalars": scalars,
                "mask": mask,
                "elements": elements,
            }
            beats.append(Expected(beat, nonfinite, outside))
    return beats


def check(payload: Any, wanted: Expected, number: int) -> None:
    beat = wanted.beat
    got = (payload.last, payload.mask, payload.nonfinite, payload.outside)
    assert got == (beat["last"], beat["mask"], wanted.nonfinite, wanted.outside), f"beat {number}"
    for lane, element in enumerate(beat["elements"]):
        for output, (operand, scalars) in SOURCES.items():
            value = element[operand]
            for scalar in scalars:
                value ^= beat["scalars"][scalar]
            assert payload.elements[lane][output] == value, f"beat {number}, lane {lane}, {output}"


def run(dut: Lanes, beats: list[Expected], dice: random.Random, *, idle: float = 0, blocked: float = 0) -> int:
    """Send the beats and check what comes out; the clocks it took."""
    sim = Simulator(dut)
    sim.add_clock(1e-6)
    clocks = 0

    async def source(ctx):
        for expected in beats:
            while dice.random() < idle:
                await ctx.tick()
            ctx.set(dut.i.payload, expected.beat)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)

    async def sink(ctx):
        nonlocal clocks
        for number, expected in enumerate(beats):
            ready = False
            while True:
                ctx.set(dut.o.ready, ready := dice.random() >= blocked)
                _, _, valid, payload = await ctx.tick().sample(dut.o.valid, dut.o.payload)
                clocks += 1
                if valid and ready:
                    break
            check(payload, expected, number)

    sim.add_testbench(source)
    sim.add_testbench(sink)
    sim.run()
    return clocks


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("idle", [0, 0.4])
@pytest.mark.parametrize("blocked", [0, 0.4])
def test_each_beat_comes_out_once_in_order_with_its_own_scalars(seed: int, lanes: int, idle: float, blocked: float):
    dice = random.Random(seed)
    dut = Lanes(lanes, StandInLane)
    run(dut, make_beats(dice, lanes, 150), dice, idle=idle, blocked=blocked)


def test_a_deep_lane_keeps_its_beats_too(seed: int):
    dice = random.Random(seed)
    run(Lanes(1, lambda: StandInLane(timing=LONG)), make_beats(dice, 1, 500), dice, idle=0.05, blocked=0.05)


@pytest.mark.parametrize("timing", [SHORT, LONG], ids=["short", "long"])
def test_a_beat_is_taken_every_clock_while_scalars_change(seed: int, timing: Timing):
    dice = random.Random(seed)
    dut = Lanes(1, lambda: StandInLane(timing=timing))
    beats = make_beats(dice, 1, 600)
    # The first beat's way, and then one each clock: fetched once complete, moved on, and seen in the clock after.
    assert run(dut, beats, dice) == dut.latency + 3 + len(beats)


def test_while_nothing_is_taken_the_lanes_fill_the_buffer_and_stop(seed: int):
    dice = random.Random(seed)
    dut = Lanes(1, StandInLane)
    beats = make_beats(dice, 1, 4 * dut.rows)
    sim = Simulator(dut)
    sim.add_clock(1e-6)
    accepted = 0

    async def source(ctx):
        nonlocal accepted
        ctx.set(dut.i.valid, 1)
        for _ in range(3 * dut.rows):
            ctx.set(dut.i.payload, beats[accepted].beat)
            _, _, ready = await ctx.tick().sample(dut.i.ready)
            accepted += ready
        assert not ctx.get(dut.i.ready)

    sim.add_testbench(source)
    sim.run()
    # The rows that wait in the two registers after the RAM have given their places back.
    assert accepted == dut.rows + 2


@pytest.mark.parametrize("timing", [SHORT, LONG], ids=["short", "long"])
def test_the_buffer_covers_the_latency(timing: Timing):
    dut = Lanes(1, lambda: StandInLane(timing=timing))
    assert dut.rows >= dut.latency + TURNAROUND
    assert dut.rows.bit_count() == 1


@pytest.mark.parametrize("lanes", [0, -1, 3, 5, 32, 1.0, True, "4", None])
def test_other_lane_counts_are_refused_with_the_allowed_ones(lanes: Any):
    with pytest.raises(ValueError, match="use one of 1, 2, 4, 8, 16"):
        Lanes(lanes, StandInLane)


@pytest.mark.parametrize("lanes", LANE_COUNTS)
def test_there_are_as_many_elements_in_a_beat_as_lanes(lanes: int):
    dut = Lanes(lanes, StandInLane)
    assert len(dut.i.payload.elements) == len(dut.o.payload.elements) == len(dut.i.payload.mask) == lanes
