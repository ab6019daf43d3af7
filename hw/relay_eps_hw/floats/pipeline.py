"""Cutting a datapath into register stages.

A unit is written as a chain of short steps. Between any two a register can stand; ``depth`` says at how many of those
places one does. The bits that come out do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

from amaranth.hdl import Module, Shape, Signal, Value, ValueCastable


def place_registers(weights: Sequence[int], depth: int) -> tuple[bool, ...]:
    """After which steps a register stands, so that the heaviest run of steps between two registers is lightest.

    ``weights`` are the steps' delays in any unit. A register always stands after the last step.
    """
    steps = len(weights)
    # best[d][i]: (heaviest run, where the last run starts) for the first i steps cut into d runs.
    best: list[list[tuple[int, int]]] = [[(sum(weights[:i]), 0) for i in range(steps + 1)]]
    for d in range(1, depth):
        row = [(10**9, 0)] * (steps + 1)
        for i in range(d + 1, steps + 1):
            row[i] = min((max(best[d - 1][j][0], sum(weights[j:i])), j) for j in range(d, i))
        best.append(row)
    ends = {steps}
    at = steps
    for d in range(depth - 1, 0, -1):
        at = best[d][at][1]
        ends.add(at)
    return tuple(i + 1 in ends for i in range(steps))


class Pipeline:
    """The registers of one unit, placed one step at a time while it is elaborated.

    Attributes:
        en: the enable of the registers.

    Args:
        m: the module that the unit is built in.
        en: when low, every register holds.
        weights: the delay of each step, in any unit; their number is the number of steps.
        depth: how many registers a value passes, 1 to ``len(weights)``; the unit's latency in clocks.
    """

    def __init__(self, m: Module, en: Value, weights: Sequence[int], depth: int) -> None:
        self._m = m
        self.en = en
        self._places = place_registers(weights, depth)
        self._step = 0
        self._shared = 0

    def registered(self, step: int) -> bool:
        """Whether a register stands after a step, counted from 0: for blocks that have it inside."""
        return self._places[step]

    def cut(self, **values: Value | ValueCastable) -> SimpleNamespace:
        """End a step: the same values at the start of the next one, behind a register where one stands here.

        Data registers have no reset, so that shift-register LUTs and DSP blocks can take them in.
        """
        number = self._step
        self._step += 1
        held = SimpleNamespace()
        registered = self._places[number]
        for name, value in values.items():
            source = Value.cast(value)
            if not len(source):
                # A signal of no bits would be one in the Verilog.
                setattr(held, name, source)
                continue
            signal = Signal(Shape.cast(source.shape()), name=f"{name}_{number + 1}", reset_less=True)
            if registered:
                with self._m.If(self.en):
                    self._m.d.sync += signal.eq(source)
            else:
                self._m.d.comb += signal.eq(source)
            setattr(held, name, signal)
        return held

    def share(self, value: Value) -> Value:
        """``value`` as a signal, for a value that is used more than once in a step."""
        if isinstance(value, Signal) or not len(value):
            return value
        self._shared += 1
        signal = Signal(value.shape(), name=f"shared_{self._shared}")
        self._m.d.comb += signal.eq(value)
        return signal

    def finish(self) -> None:
        """Check, once the unit is built, that every step was ended."""
        assert self._step == len(self._places), f"{self._step} of {len(self._places)} steps were built"


def carried(s: SimpleNamespace, names: Iterable[str]) -> dict[str, Value]:
    """What a step passes on as it is: the values called ``names`` among those at its start."""
    return {name: getattr(s, name) for name in names}
