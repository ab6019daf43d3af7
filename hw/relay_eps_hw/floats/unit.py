"""What all float units have in common: ports, depth, latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.faults import Faults
from relay_eps_hw.floats.formats import FloatFormat
from relay_eps_hw.floats.pipeline import Pipeline


class FloatUnit(wiring.Component):
    """A pipelined float operation: one result a clock, ``latency`` clocks after its operands.

    Ports:
        en (in, 1): the stall. While low every register of the unit holds; it costs no result. High if left open.
        operands (in): the unit's ``OPERANDS``, each as wide as the format it takes.
        o (out): the result, rounded to nearest even, subnormals kept. A NaN result is the quiet NaN.

    Args:
        operands: the width of each operand, in bits.
        result: the width of the result, in bits.
        weights: the delay of each step of the unit, in any unit of time.
        depth: registers on the way, 1 to ``len(weights)``, or None for as many; ValueError for another, with those
            allowed.
        faults: faults to build in, for the check that the tests find them.
    """

    OPERANDS: ClassVar[tuple[str, ...]]

    def __init__(
        self, operands: Sequence[int], result: int, weights: Sequence[int], depth: int | None, faults: Faults | None
    ) -> None:
        if depth is None:
            depth = len(weights)
        if type(depth) is not int or not 1 <= depth <= len(weights):
            raise ValueError(f"a depth of {depth!r} is not supported by {type(self).__name__}: use 1 to {len(weights)}")
        self.depth = depth
        self.faults = faults
        self._weights = tuple(weights)
        ports = {name: In(width) for name, width in zip(self.OPERANDS, operands, strict=True)}
        super().__init__({"en": In(1, init=1), **ports, "o": Out(result)})

    @property
    def latency(self) -> int:
        """Clocks from operands to result, not counting stalled ones."""
        return self.depth

    @property
    def steps(self) -> int:
        """The largest depth."""
        return len(self._weights)

    def pipeline(self, m: Module) -> Pipeline:
        """The registers of this unit, to be placed in ``m``."""
        return Pipeline(m, self.en, self._weights, self.depth)


def check_format(fmt: object) -> FloatFormat:
    """``fmt`` itself; ValueError unless it is a FloatFormat."""
    if not isinstance(fmt, FloatFormat):
        raise ValueError(f"{fmt!r} is not a FloatFormat: use FP32, BF16, FP16 or FloatFormat(exponent, fraction)")
    return fmt
