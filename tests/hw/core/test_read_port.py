"""The read port: every stream gets its own beats in order, and after an error nothing more is asked for."""

from __future__ import annotations

import random

import pytest
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.core.read_port import ReadPort
from relay_eps_hw.core.shape import Shape
from tests.hw.core.memory import ReadMemory, content

LIMIT = 8
BEAT = 8
Burst = tuple[int, int]


def bursts(dice: random.Random, count: int) -> list[Burst]:
    """Random ones that cross no multiple of the limit: place and beats."""
    found = []
    for _ in range(count):
        place = dice.randrange(1 << 20)
        found.append((place, dice.randrange(1, LIMIT - place % LIMIT + 1)))
    return found


def run(
    port: ReadPort,
    wanted: list[list[Burst]],
    memory: ReadMemory,
    *,
    late: float = 0.0,
    clocks: int = 3000,
    stop_at: int | None = None,
) -> tuple[list[list[int]], dict[str, int], int]:
    """The beats of each stream; what the port says at the end; the clock of the last beat."""
    got: list[list[int]] = [[] for _ in wanted]
    said: dict[str, int] = {}
    last_beat = 0
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

    async def receive(ctx: SimulatorContext) -> None:
        nonlocal last_beat
        for clock in range(clocks):
            if clock == stop_at:
                ctx.set(port.stop, 1)
            _, _, valid, beat = await ctx.tick().sample(port.valid, port.beat)
            for number, beats in enumerate(got):
                if valid >> number & 1:
                    beats.append(beat)
                    last_beat = clock
        said.update(
            idle=ctx.get(port.idle),
            found=ctx.get(port.fault.found),
            number=ctx.get(port.fault.number),
            place=ctx.get(port.fault.place),
        )

    async def answer(ctx: SimulatorContext) -> None:
        await memory.run(ctx, port.bus)

    simulator = Simulator(port)
    simulator.add_clock(1e-6)
    for number in range(len(wanted)):
        simulator.add_testbench(sender(number), background=True)
    simulator.add_testbench(answer, background=True)
    simulator.add_testbench(receive)
    simulator.run()
    return got, said, last_beat


def beats_of(asked: list[Burst]) -> list[int]:
    return [content((place + beat) * BEAT, BEAT) for place, beats in asked for beat in range(beats)]


@pytest.mark.parametrize("streams", [1, 2, 5])
@pytest.mark.parametrize(("late", "busy"), [(0.0, 0.0), (0.4, 0.3)])
def test_each_stream_gets_the_beats_it_asked_for_in_order(seed: int, streams: int, late: float, busy: float):
    dice = random.Random(seed)
    wanted = [bursts(dice, 25) for _ in range(streams)]
    memory = ReadMemory(BEAT, dice, latency=dice.randrange(1, 12), busy=busy)
    got, said, _ = run(ReadPort(streams, Shape(BEAT, LIMIT), outstanding=4), wanted, memory, late=late)
    assert got == [beats_of(asked) for asked in wanted]
    assert said["idle"]
    assert not said["found"]


def test_beats_follow_each_other_without_a_gap_where_enough_bursts_are_outstanding(seed: int):
    dice = random.Random(seed)
    latency = 40
    wanted = [[(LIMIT * dice.randrange(1000), LIMIT) for _ in range(30)]]
    memory = ReadMemory(BEAT, dice, latency=latency)
    got, _, last = run(ReadPort(1, Shape(BEAT, LIMIT), outstanding=8), wanted, memory, clocks=400)
    assert len(got[0]) == 30 * LIMIT
    assert last < latency + 30 * LIMIT + 8


def test_streams_take_turns(seed: int):
    dice = random.Random(seed)
    wanted = [[(LIMIT * (1000 * number + k), 1) for k in range(20)] for number in range(3)]
    memory = ReadMemory(BEAT, dice)
    run(ReadPort(3, Shape(BEAT, LIMIT), outstanding=16), wanted, memory)
    owners = [address // (BEAT * LIMIT * 1000) for address, _ in memory.asked]
    # A stream needs a clock to ask again: at worst the others go first once more.
    assert all(set(owners[at : at + 4]) == {0, 1, 2} for at in range(0, 50, 3))


def test_after_an_error_nothing_more_is_asked_for_and_all_that_was_is_taken(seed: int):
    dice = random.Random(seed)
    wanted = [bursts(dice, 40) for _ in range(2)]
    place, _ = wanted[1][10]
    memory = ReadMemory(BEAT, dice, bad=frozenset({place * BEAT}))
    got, said, _ = run(ReadPort(2, Shape(BEAT, LIMIT), outstanding=4), wanted, memory)
    assert (said["found"], said["number"], said["place"]) == (1, 1, place)
    assert said["idle"], "what was outstanding has been taken"
    assert len(memory.asked) < 80
    assert sum(map(len, got)) == sum(beats for _, beats in memory.asked)


def test_a_port_that_is_stopped_comes_to_rest(seed: int):
    dice = random.Random(seed)
    wanted = [bursts(dice, 40) for _ in range(2)]
    memory = ReadMemory(BEAT, dice)
    got, said, _ = run(ReadPort(2, Shape(BEAT, LIMIT), outstanding=4), wanted, memory, stop_at=50)
    assert said["idle"]
    assert not said["found"]
    assert 0 < len(memory.asked) < 80
    assert sum(map(len, got)) == sum(beats for _, beats in memory.asked)


@pytest.mark.parametrize("outstanding", [0, -1])
def test_less_than_one_burst_at_once_is_refused(outstanding: int):
    with pytest.raises(ValueError, match="use 1 or more"):
        ReadPort(1, Shape(BEAT, LIMIT), outstanding=outstanding)
