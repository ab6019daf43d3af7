"""A float unit in Amaranth's own simulator: slow, a few thousand operands a second, and with nothing to compile."""

from __future__ import annotations

import numpy as np
from amaranth.sim import Simulator, SimulatorContext
from numpy.typing import NDArray

from relay_eps_hw.floats.unit import FloatUnit

Bits = NDArray[np.uint32]


def run(unit: FloatUnit, *operands: Bits, stalled: float = 0, rng: np.random.Generator) -> Bits:
    """The results, as many as there are operands.

    ``stalled`` is the probability of a clock in which the unit holds; its operands are then random, and must not get
    in. They are random after the last ones too.
    """
    ports = [getattr(unit, name) for name in unit.OPERANDS]
    assert len(ports) == len(operands)
    results: list[int] = []

    async def feed(ctx: SimulatorContext) -> None:
        rows = list(zip(*(operand.tolist() for operand in operands), strict=True))
        at = -unit.latency
        while len(results) < len(rows):
            hold = stalled > 0 and rng.random() < stalled
            taken = at + unit.latency
            real = not hold and taken < len(rows)
            row = rows[taken] if real else tuple(int(rng.integers(1 << len(port))) for port in ports)
            for port, value in zip(ports, row, strict=True):
                ctx.set(port, value)
            ctx.set(unit.en, not hold)
            *_, result = await ctx.tick().sample(unit.o)
            if not hold:
                if at >= 0:
                    results.append(result)
                at += 1

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(feed)
    simulator.run()
    return np.array(results, np.uint32)
