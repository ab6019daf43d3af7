"""Bursts: a section is cut into bursts that cover it once, and none is longer or lies elsewhere than AXI allows."""

from __future__ import annotations

import random

import pytest
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.core.bursts import Bursts
from relay_eps_hw.core.shape import BEAT_BYTES, BOUNDARY, Shape

Section = tuple[int, int]
Burst = tuple[int, int, int]


def expected(sections: list[Section], limit: int) -> list[Burst]:
    """The bursts of sections of a place and a number of beats, one beat after the other."""
    bursts: list[Burst] = []
    for place, beats in sections:
        end = place + beats
        while place < end:
            stop = min(end, (place // limit + 1) * limit)
            bursts.append((place, stop - place, int(stop == end)))
            place = stop
    return bursts


def run(unit: Bursts, sections: list[Section], dice: random.Random, *, late: float) -> tuple[list[Burst], int]:
    """The bursts, and how many clocks they took."""
    bursts: list[Burst] = []
    clocks = 0

    async def send(ctx: SimulatorContext) -> None:
        for place, beats in sections:
            while dice.random() < late:
                await ctx.tick()
            final = (place + beats - 1) % (1 << len(unit.i.payload.final))
            ctx.set(unit.i.payload, {"place": place, "final": final})
            ctx.set(unit.i.valid, 1)
            await ctx.tick().until(unit.i.ready)
            ctx.set(unit.i.valid, 0)

    async def receive(ctx: SimulatorContext) -> None:
        nonlocal clocks
        wanted = len(expected(sections, unit.limit))
        while len(bursts) < wanted:
            ready = dice.random() >= late
            ctx.set(unit.o.ready, ready)
            _, _, valid, payload = await ctx.tick().sample(unit.o.valid, unit.o.payload)
            clocks += 1
            if valid and ready:
                bursts.append((payload.place, payload.beats, payload.last))

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(send)
    simulator.add_testbench(receive)
    simulator.run()
    return bursts, clocks


def sections_about(dice: random.Random, limit: int, boundary: int) -> list[Section]:
    """From one beat before to one after each edge, to the same, and random ones."""
    near = [(limit + at, limit * cut + length) for at in (-1, 0, 1) for cut in (0, 1, 2) for length in (-1, 0, 1)]
    edges = [(boundary + at, length) for at in (-2, -1, 0, 1) for length in (1, 2, limit, limit + 1)]
    anywhere = [(dice.getrandbits(40), dice.randrange(1, 6 * limit)) for _ in range(30)]
    return [(place, beats) for place, beats in near + edges + anywhere if place >= 0 and beats > 0]


@pytest.mark.parametrize(("beat_bytes", "limit"), [(8, 16), (8, 256), (16, 16), (64, 64), (64, 1), (32, 8)])
@pytest.mark.parametrize("late", [0, 0.4])
def test_bursts_cover_each_section_once_in_order(seed: int, beat_bytes: int, limit: int, late: float):
    dice = random.Random(seed)
    sections = sections_about(dice, limit, BOUNDARY // beat_bytes)
    bursts, _ = run(Bursts(Shape(beat_bytes, limit)), sections, dice, late=late)
    assert bursts == expected(sections, limit)
    for place, beats, _ in bursts:
        first, last = place * beat_bytes, (place + beats) * beat_bytes - 1
        assert first // BOUNDARY == last // BOUNDARY


@pytest.mark.parametrize(
    ("beat_bytes", "limit", "beats"), [(8, 16, 8), (16, 16, 4), (8, 16, 16), (64, 2, 2), (64, 8, 1)]
)
def test_sections_of_a_few_beats_need_only_a_few_bits_to_say_where_they_end(
    seed: int, beat_bytes: int, limit: int, beats: int
):
    dice = random.Random(seed)
    sections = [(dice.getrandbits(20), dice.randrange(1, beats + 1)) for _ in range(200)]
    unit = Bursts(Shape(beat_bytes, limit, count_bits=beats.bit_length()))
    assert run(unit, sections, dice, late=0.2)[0] == expected(sections, limit)


def test_there_is_a_burst_in_every_clock_whatever_the_sections(seed: int):
    dice = random.Random(seed)
    sections = [(dice.randrange(1000), dice.randrange(1, 40)) for _ in range(60)]
    bursts, clocks = run(Bursts(Shape(8, 16)), sections, dice, late=0)
    assert clocks == len(bursts) + 1, "one for the first section to enter"


def test_the_largest_section_at_the_end_of_the_addresses_begins_as_it_should(seed: int):
    unit = Bursts(Shape(8, 256))
    dice = random.Random(seed)
    place = (1 << 61) - 3
    assert run(unit, [(place, 3)], dice, late=0)[0] == [(place, 3, 1)]


@pytest.mark.parametrize("beat_bytes", [0, 4, 7, 12, 128, "8"])
def test_beats_that_no_port_has_are_refused(beat_bytes: int):
    with pytest.raises(ValueError, match=f"use one of {', '.join(map(str, BEAT_BYTES))}"):
        Shape(beat_bytes, 16)


@pytest.mark.parametrize(
    ("beat_bytes", "limit", "most"), [(8, 512, 256), (64, 128, 64), (8, 0, 256), (8, 12, 256), (8, True, 256)]
)
def test_bursts_that_axi_does_not_have_are_refused(beat_bytes: int, limit: int, most: int):
    with pytest.raises(ValueError, match=f"use a power of two from 1 to {most}"):
        Shape(beat_bytes, limit)
