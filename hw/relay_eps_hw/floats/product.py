"""The product of two significands, from two multiplier blocks' partial products, over three steps."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Value

#: The unsigned width of the narrower operand of AMD's DSP blocks.
NARROW_OPERAND = 17


class Product:
    """``a * b`` in three steps of a pipeline; the unit ends each with what else it carries.

    1. `partial`: a times b's low and high part
    2. `hold`: the registers at the multipliers' outputs
    3. `total`: their sum
    """

    def __init__(self, width: int) -> None:
        self._low = min(NARROW_OPERAND, width - 1)

    def partial(self, a: Value, b: Value) -> dict[str, Value]:
        """What is carried from step 1."""
        return {"low": a * b[: self._low], "high": a * b[self._low :]}

    def hold(self, s: SimpleNamespace) -> dict[str, Value]:
        """What is carried from step 2."""
        return {"low": s.low, "high": s.high}

    def total(self, s: SimpleNamespace) -> Value:
        """The product, in step 3."""
        width = len(s.low) + len(s.high) - (len(s.low) - self._low)
        return Cat(s.low[: self._low], s.high + s.low[self._low :])[:width]
