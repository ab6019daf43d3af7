"""Delay lines: what goes in comes out so many clocks later, however the line is made."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.hdl import ClockDomain, Module
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.delay import LONGEST_IN_REGISTERS, ROWS_IN_LUTS, DelayLine

#: Every length about the changes of how a line is made, and long ones.
CLOCKS = [*range(ROWS_IN_LUTS + 4), 31, 32, 33, 64, 130]


@pytest.mark.parametrize("clocks", CLOCKS)
def test_the_output_is_the_input_of_so_many_clocks_ago(rng: np.random.Generator, clocks: int):
    line = DelayLine(12, clocks)
    sent = rng.integers(1 << 12, size=3 * clocks + 20).tolist()
    seen: list[int] = []

    async def feed(ctx: SimulatorContext) -> None:
        for value in sent:
            ctx.set(line.i, value)
            *_, now = await ctx.tick().sample(line.o)
            seen.append(now)

    top = Module()
    # A line of no clocks has no clock of its own.
    top.domains.sync = ClockDomain()
    top.submodules.line = line
    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    simulator.add_testbench(feed)
    simulator.run()
    assert seen[clocks:] == sent[: len(sent) - clocks]


def test_the_lengths_tested_are_made_in_every_way():
    assert {0, LONGEST_IN_REGISTERS, LONGEST_IN_REGISTERS + 1, ROWS_IN_LUTS, ROWS_IN_LUTS + 1} <= set(CLOCKS)


def test_a_delay_below_zero_is_refused():
    with pytest.raises(ValueError, match="a delay of -1 clocks is not possible: use 0 or more"):
        DelayLine(8, -1)
