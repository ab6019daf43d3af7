"""A float unit between streams: order, count and throughput, under random gaps and back-pressure on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.floats.narrow import Narrow
from relay_eps_hw.floats.streamed import Streamed
from relay_eps_hw.floats.wire import WireFormat
from tests.hw.floats.sixteen import Bits, narrowed

DEPTHS = (1, 2, 3, 5)


def run(dut: Streamed, a: Bits, rng: np.random.Generator, *, idle: float, blocked: float) -> tuple[list[int], int]:
    """The results for ``a`` as bf16, and the clocks until the last was taken.

    ``idle`` is the probability of a clock in which nothing is offered, ``blocked`` of one in which nothing is taken.
    """
    results: list[int] = []
    clocks = 0

    async def source(ctx: SimulatorContext) -> None:
        for value in a.tolist():
            while rng.random() < idle:
                await ctx.tick()
            ctx.set(dut.i.payload, {"a": value, "format": WireFormat.BF16})
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)
            ctx.set(dut.i.payload, {"a": int(rng.integers(1 << 32)), "format": WireFormat.FP32})

    async def sink(ctx: SimulatorContext) -> None:
        nonlocal clocks
        waiting: int | None = None
        while len(results) < len(a):
            ready = bool(rng.random() >= blocked)
            ctx.set(dut.o.ready, ready)
            _, _, valid, payload = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            clocks += 1
            if waiting is not None:
                assert valid, "a result that waits is not taken back"
                assert payload == waiting, "a result that waits does not change"
            waiting = payload if valid and not ready else None
            if valid and ready:
                results.append(payload)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(source)
    simulator.add_testbench(sink)
    simulator.run()
    return results, clocks


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("idle", [0, 0.5])
@pytest.mark.parametrize("blocked", [0, 0.5])
def test_each_element_gives_one_result_in_order(rng: np.random.Generator, depth: int, idle: float, blocked: float):
    a = rng.integers(0, 0x7F80_0000, 300, dtype=np.uint32)
    results, _ = run(Streamed(Narrow(depth=depth)), a, rng, idle=idle, blocked=blocked)
    assert results == narrowed(a, WireFormat.BF16).tolist()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_result_comes_every_clock_after_the_latency(rng: np.random.Generator, depth: int):
    a = rng.integers(0, 0x7F80_0000, 200, dtype=np.uint32)
    dut = Streamed(Narrow(depth=depth))
    _, clocks = run(dut, a, rng, idle=0, blocked=0)
    assert dut.latency == depth
    assert clocks == dut.latency + len(a)


def test_the_operands_are_the_fields_of_the_stream():
    dut = Streamed(Narrow(depth=1))
    assert {name: field.width for name, field in dut.i.payload.shape()} == {"a": 32, "format": 2}
    assert len(dut.o.payload) == len(dut.unit.o)
