"""The last steps of multiplication and division: move a result down into its exponent's range, and round it."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.formats import FloatFormat
from relay_eps_hw.floats.pipeline import Pipeline, carried
from relay_eps_hw.floats.shift import shift_right


@dataclass(frozen=True)
class Raw:
    """A positive result before it is rounded.

    Attributes:
        value: its significand. Moved down by ``amount``, its ``fraction + 3`` lowest bits are: one of weight 2, one of
            weight 1, the fraction, and a guard bit. The bits above are then zero.
        amount: how far it has still to be moved down, at least 2 bits; a distance that does not fit in it is its
            largest value.
        sticky (1): something not zero has been lost below ``value``.
        exponent (exponent + 1 bits or more): one less than the stored exponent of the moved value, were that from 1 to
            under 2. 0 for subnormal results and zeros; for such as overflow any number that is too large.
        sign, nan, inf (1): nan and inf take precedence over the value, nan over inf.
    """

    value: Value
    amount: Value
    sticky: Value
    exponent: Value
    sign: Value
    nan: Value
    inf: Value


def steps(bits: int) -> int:
    """How many steps `finish` has for an amount of so many bits."""
    return len(_lowest_of_each(bits)) + 2


def finish(p: Pipeline, fmt: FloatFormat, raw: Raw, faults: Faults | None, unit: str) -> Value:
    """The rounded bits of ``raw``, some steps later.

    1. move down by the two largest distances; see what will be infinite or NaN
    2. and on: by the two next, or the one next, until only the smallest is left
    3. move down by the smallest, and by one more what is from 2 up; decide the rounding; put in special results
    4. add the top bits and the rounding, through fraction and exponent
    """
    special = raw.nan | raw.inf | _too_large(fmt, raw.exponent)
    # One less than the largest finite exponent: infinite from 2 up.
    edge = raw.exponent == fmt.exponent_max - 2
    kept = {
        "exponent": raw.exponent[: fmt.exponent],
        "special": special,
        "edge": edge,
        "sign": raw.sign,
        "nan": raw.nan,
    }
    # What a special result sets or clears is a choice between values: tools make it the set or reset of a register.
    value, amount, sticky = raw.value, raw.amount, raw.sticky
    for lowest in _lowest_of_each(len(amount)):
        moved, lost = shift_right(p, value, amount[lowest:], fmt.fraction + 3, sticky, below=1 << lowest)
        lost = fault(faults, f"{unit}.sticky-dropped", lost, sticky)
        s = p.cut(value=moved, sticky=lost, amount=amount[:lowest], **kept)
        value, amount, sticky = s.value, s.amount, s.sticky
        kept = carried(s, kept)
    value = p.share(Cat(value, Const(0, fmt.fraction + 4 - len(value))))
    lost = sticky | amount[0] & value[0]
    value = p.share(Mux(amount[0], value[1:], value[:-1]))

    two = value[-1]
    lost |= two & value[0]
    fraction = Mux(two, value[2:-1], value[1:-2])
    guard = Mux(two, value[1], value[0])
    to_odd = fault(faults, f"{unit}.tie-away", fraction[0] | lost, Const(1, 1))
    one = fault(faults, f"{unit}.subnormal-exponent", value[-2] & ~two, ~two)
    special = s.special | s.edge & two
    s = p.cut(
        fraction=Mux(special, Cat(Const(0, fmt.fraction - 1), s.nan), fraction),
        exponent=Mux(s.special, fmt.exponent_max, s.exponent),
        top=Mux(s.special, 0, Cat(one, fault(faults, f"{unit}.exponent-of-two-and-over", two, Const(0, 1)))),
        up=guard & to_odd & ~special,
        sign=s.sign & ~s.nan,
    )
    # The rounding is the carry into the sum.
    rounded = Cat(s.up, s.fraction, s.exponent) + Cat(s.up, Const(0, fmt.fraction), s.top)
    return p.cut(o=Cat(rounded[1 : fmt.width], s.sign)).o


def _too_large(fmt: FloatFormat, exponent: Value) -> Value:
    return exponent[1 : fmt.exponent].all() | exponent[fmt.exponent :].any()


def _lowest_of_each(bits: int) -> list[int]:
    """The lowest bit of the amount that each step of moving takes; bit 0 is for later."""
    return [*range(bits - 2, 1, -2), 1]
