"""The write port: every burst is written with its stream's data, and after an error nothing more is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.core.shape import Shape
from relay_eps_hw.core.write_port import WritePort
from tests.hw.core.memory import WriteMemory, content

LIMIT = 8
BEAT = 8
FULL = (1 << BEAT) - 1
Burst = tuple[int, int]


def bursts(dice: random.Random, streams: int, count: int) -> list[list[Burst]]:
    """For each stream, bursts that cross no multiple of the limit: place and beats; none overlaps another."""
    rows = dice.sample(range(1 << 16), streams * count)
    found: list[list[Burst]] = [[] for _ in range(streams)]
    for number, row in enumerate(rows):
        start = dice.randrange(LIMIT)
        found[number % streams].append((row * LIMIT + start, dice.randrange(1, LIMIT - start + 1)))
    return found


@dataclass
class Outcome:
    """What was seen: beats acknowledged by stream, and what the port says at the end."""

    acknowledged: list[int] = field(default_factory=list)
    idle: int = 0
    found: int = 0
    number: int = 0
    place: int = 0
    last_clock: int = 0


def strobes_of(place: int) -> int:
    """Some bytes of a beat, not always all."""
    return FULL if place % 3 else (1 << place % 7 + 1) - 1


def run(
    port: WritePort, wanted: list[list[Burst]], memory: WriteMemory, *, late: float = 0.0, stop_at: int | None = None
) -> Outcome:
    outcome = Outcome(acknowledged=[0] * len(wanted))
    dice = random.Random(memory.dice.random())

    def sender(number: int):
        async def send(ctx: SimulatorContext) -> None:
            request = port.requests[number]
            for place, beats in wanted[number]:
                while dice.random() < late:
                    await ctx.tick()
                ctx.set(request.payload, {"place": place, "beats": beats, "last": 0})
                ctx.set(request.valid, 1)
                taken = False
                while not taken:
                    _, _, taken = await ctx.tick().sample(request.ready)
                ctx.set(request.valid, 0)

        return send

    def feeder(number: int):
        # All the data is there before any burst is asked for.
        async def feed(ctx: SimulatorContext) -> None:
            beats = port.beats[number]
            for place in (place + beat for place, count in wanted[number] for beat in range(count)):
                ctx.set(beats.payload, {"data": content(place * BEAT, BEAT), "strobes": strobes_of(place)})
                ctx.set(beats.valid, 1)
                taken = False
                while not taken:
                    _, _, taken = await ctx.tick().sample(beats.ready)
            ctx.set(beats.valid, 0)

        return feed

    async def watch(ctx: SimulatorContext) -> None:
        for clock in range(3000):
            if clock == stop_at:
                ctx.set(port.stop, 1)
            _, _, acknowledged, beats = await ctx.tick().sample(port.acknowledged, port.acknowledged_beats)
            for number in range(len(wanted)):
                if acknowledged >> number & 1:
                    outcome.acknowledged[number] += beats
                    outcome.last_clock = clock
        outcome.idle = ctx.get(port.idle)
        outcome.found = ctx.get(port.fault.found)
        outcome.number = ctx.get(port.fault.number)
        outcome.place = ctx.get(port.fault.place)

    async def answer(ctx: SimulatorContext) -> None:
        await memory.run(ctx, port.bus)

    simulator = Simulator(port)
    simulator.add_clock(1e-6)
    for number in range(len(wanted)):
        simulator.add_testbench(sender(number), background=True)
        simulator.add_testbench(feeder(number), background=True)
    simulator.add_testbench(answer, background=True)
    simulator.add_testbench(watch)
    simulator.run()
    return outcome


def bytes_of(asked: list[Burst]) -> dict[int, int]:
    """What memory holds after these bursts, by address."""
    held: dict[int, int] = {}
    for place in (place + beat for place, beats in asked for beat in range(beats)):
        for byte in range(BEAT):
            if strobes_of(place) >> byte & 1:
                held[place * BEAT + byte] = content(place * BEAT, BEAT) >> 8 * byte & 0xFF
    return held


def first_beats(asked: list[Burst], beats: int) -> list[Burst]:
    """Of these bursts, the first ones that have so many beats together."""
    found = []
    for burst in asked:
        if beats <= 0:
            break
        found.append(burst)
        beats -= burst[1]
    assert beats == 0, "bursts are acknowledged whole"
    return found


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize(("late", "busy"), [(0.0, 0.0), (0.4, 0.3)])
def test_exactly_the_strobed_bytes_of_each_burst_are_written_and_acknowledged(
    seed: int, streams: int, late: float, busy: float
):
    dice = random.Random(seed)
    wanted = bursts(dice, streams, 25)
    memory = WriteMemory(BEAT, dice, latency=dice.randrange(1, 12), busy=busy)
    outcome = run(WritePort(streams, Shape(BEAT, LIMIT), outstanding=4), wanted, memory, late=late)
    assert memory.written == {address: byte for asked in wanted for address, byte in bytes_of(asked).items()}
    assert outcome.acknowledged == [sum(beats for _, beats in asked) for asked in wanted]
    assert outcome.idle
    assert not outcome.found


def test_beats_follow_each_other_without_a_gap(seed: int):
    dice = random.Random(seed)
    latency = 40
    wanted = [[(LIMIT * k, LIMIT) for k in range(30)]]
    outcome = run(WritePort(1, Shape(BEAT, LIMIT), outstanding=8), wanted, WriteMemory(BEAT, dice, latency=latency))
    assert outcome.acknowledged == [30 * LIMIT]
    assert outcome.last_clock < latency + 30 * LIMIT + 8


def test_after_an_error_nothing_is_written_any_more_and_all_that_was_accepted_is_completed(seed: int):
    dice = random.Random(seed)
    wanted = bursts(dice, 2, 40)
    place, _ = wanted[1][10]
    memory = WriteMemory(BEAT, dice, bad=frozenset({place * BEAT}))
    outcome = run(WritePort(2, Shape(BEAT, LIMIT), outstanding=4), wanted, memory)
    assert (outcome.found, outcome.number, outcome.place) == (1, 1, place)
    assert outcome.idle
    assert len(memory.bursts) < 80
    # Bytes that were written are right; bursts behind the error may have been completed without strobes.
    whole = {address: byte for asked in wanted for address, byte in bytes_of(asked).items()}
    assert memory.written.items() <= whole.items()
    done = sum(beats for address, beats in memory.bursts if address != place * BEAT)
    # What was acknowledged has been written: of each stream, so many of its first beats.
    assert sum(outcome.acknowledged) <= done
    for asked, acknowledged in zip(wanted, outcome.acknowledged, strict=True):
        assert bytes_of(first_beats(asked, acknowledged)).items() <= memory.written.items()


def test_a_port_that_is_stopped_comes_to_rest(seed: int):
    dice = random.Random(seed)
    wanted = bursts(dice, 2, 40)
    memory = WriteMemory(BEAT, dice)
    outcome = run(WritePort(2, Shape(BEAT, LIMIT), outstanding=4), wanted, memory, stop_at=50)
    assert outcome.idle
    assert not outcome.found
    assert 0 < len(memory.bursts) < 80
    assert sum(outcome.acknowledged) == sum(beats for _, beats in memory.bursts)


@pytest.mark.parametrize("outstanding", [0, -1])
def test_less_than_one_burst_at_once_is_refused(outstanding: int):
    with pytest.raises(ValueError, match="use 1 or more"):
        WritePort(1, Shape(BEAT, LIMIT), outstanding=outstanding)
