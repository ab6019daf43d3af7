"""Values of combinational expressions, from Amaranth's simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amaranth.hdl import Module, Signal, Value
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.floats.pipeline import Pipeline


def evaluate(
    make: Callable[..., Value | tuple[Value, ...]], widths: Sequence[int], rows: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """What ``make(pipeline, *signals)`` gives, a value or several, for each row of values of signals of ``widths``."""
    m = Module()
    signals = [Signal(width, name=f"input_{number}") for number, width in enumerate(widths)]
    made = make(Pipeline(m, Signal(init=1), (1,), 1), *signals)
    outputs = made if isinstance(made, tuple) else (made,)
    named = [Signal(output.shape(), name=f"output_{number}") for number, output in enumerate(outputs)]
    m.d.comb += [signal.eq(output) for signal, output in zip(named, outputs, strict=True)]
    results: list[tuple[int, ...]] = []

    async def feed(ctx: SimulatorContext) -> None:
        for row in rows:
            for signal, value in zip(signals, row, strict=True):
                ctx.set(signal, value)
            await ctx.delay(1e-9)
            results.append(tuple(ctx.get(signal) for signal in named))

    simulator = Simulator(m)
    simulator.add_testbench(feed)
    simulator.run()
    return results
