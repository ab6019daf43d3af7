"""Round robin: one of those that ask, and nobody waits for more than one turn of each other."""

from __future__ import annotations

import random

import pytest
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.core.arbiter import RoundRobin


@pytest.mark.parametrize("parties", [1, 2, 3, 6])
def test_the_first_that_asks_behind_the_last_one_served_is_chosen(seed: int, parties: int):
    dice = random.Random(seed)
    unit = RoundRobin(parties)

    async def bench(ctx: SimulatorContext) -> None:
        last = parties - 1
        for _ in range(300):
            asks, served = dice.getrandbits(parties), dice.getrandbits(1)
            ctx.set(unit.asks, asks)
            ctx.set(unit.served, served)
            order = [(last + 1 + step) % parties for step in range(parties)]
            wanted = next((party for party in order if asks >> party & 1), None)
            _, _, chosen, number = await ctx.tick().sample(unit.chosen, unit.number)
            assert chosen == (0 if wanted is None else 1 << wanted)
            if wanted is not None:
                assert number == wanted
                last = wanted if served else last

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_nobody_takes_no_turns():
    with pytest.raises(ValueError, match="use 1 or more"):
        RoundRobin(0)
