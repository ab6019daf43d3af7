"""The last steps of multiplication and division: move a result down into its exponent's range, and round it."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.formats import FloatFormat
from relay_eps_hw.floats.pipeline import Pipeline
from relay_eps_hw.floats.shift import shift_right

#: The steps of `finish`.
STEPS = 5


@dataclass(frozen=True)
class Raw:
    """A positive result before it is rounded.

    Attributes:
        value: its significand. Moved down by ``amount``, its ``fraction + 3`` lowest bits are: one of weight 2, one of
            weight 1, the fraction, and a guard bit. The bits above are then zero.
        amount: how far it has still to be moved down; a distance that does not fit in it is its largest value.
        sticky (1): something not zero has been lost below ``value``.
        exponent (exponent + 1 bits): the stored exponent, once moved, of a significand from 1 to under 2. 1 for
            subnormal ones; all bits of the stored exponent set, or more, for such as overflow.
        sign, nan, inf (1): nan and inf take precedence over the value, nan over inf.
    """

    value: Value
    amount: Value
    sticky: Value
    exponent: Value
    sign: Value
    nan: Value
    inf: Value


def finish(p: Pipeline, fmt: FloatFormat, raw: Raw, faults: Faults | None, unit: str) -> Value:
    """The rounded bits of ``raw``, `STEPS` steps later.

    1. move down by the two largest distances
    2. by the two next
    3. by the smallest
    4. take out the top bit; decide the rounding; put in special results
    5. add the rounding, through fraction and exponent
    """
    keep = fmt.fraction + 3
    value, amount, sticky = raw.value, raw.amount, raw.sticky
    kept = {"exponent": raw.exponent, "sign": raw.sign, "nan": raw.nan, "inf": raw.inf}
    for step in range(3):
        lowest = (len(raw.amount) * (2 - step) + 1) // 3
        value, sticky = shift_right(value, amount[lowest:], keep, sticky, below=1 << lowest)
        if step == 0:
            sticky = fault(faults, f"{unit}.sticky-dropped", sticky, raw.sticky)
        s = p.cut(value=value, sticky=sticky, amount=amount[:lowest], **kept)
        value, sticky, amount = s.value, s.sticky, s.amount
        kept = {name: getattr(s, name) for name in kept}

    two_or_more = value[-1]
    significand = Mux(two_or_more, value[2:], value[1:-1])
    guard = Mux(two_or_more, value[1], value[0])
    lost = sticky | two_or_more & value[0]
    exponent = s.exponent + two_or_more
    exponent = fault(faults, f"{unit}.exponent-of-two-and-over", exponent, s.exponent)
    overflow = exponent[: fmt.exponent].all() | exponent[fmt.exponent :].any()
    special = s.nan | s.inf | overflow
    to_odd = fault(faults, f"{unit}.tie-away", significand[0] | lost, Const(1))
    subnormal = fault(faults, f"{unit}.subnormal-exponent", ~significand[-1], Const(0))
    s = p.cut(
        fraction=Mux(special, Cat(Const(0, fmt.fraction - 1), s.nan), significand[:-1]),
        exponent=Mux(special, fmt.exponent_max, Mux(subnormal, 0, exponent[: fmt.exponent])),
        up=guard & to_odd & ~special,
        sign=s.sign & ~s.nan,
    )
    rounded = Cat(s.fraction, s.exponent) + s.up
    return p.cut(o=Cat(rounded[: fmt.width - 1], s.sign)).o
