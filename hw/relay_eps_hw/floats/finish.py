"""The last steps of multiplication and division: move a result down into its exponent's range, and round it."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.formats import FloatFormat
from relay_eps_hw.floats.pipeline import Pipeline
from relay_eps_hw.floats.shift import shift_right


@dataclass(frozen=True)
class Raw:
    """A positive result before it is rounded.

    Attributes:
        value: its significand. Moved down by ``amount``, its ``fraction + 3`` lowest bits are: one of weight 2, one of
            weight 1, the fraction, and a guard bit. The bits above are then zero.
        amount: how far it has still to be moved down; a distance that does not fit in it is its largest value.
        sticky (1): something not zero has been lost below ``value``.
        exponent (exponent + 1 bits): one less than the stored exponent of the moved value, were that from 1 to under 2.
            0 for subnormal results and zeros; for such as overflow any number that is too large.
        sign, nan, inf (1): nan and inf take precedence over the value, nan over inf.
        in_place: only subnormal results are moved, all others have an amount of 0. A moved one is under 2, so that the
            smallest move is done together with the one that a normal result from 2 up asks for.
    """

    value: Value
    amount: Value
    sticky: Value
    exponent: Value
    sign: Value
    nan: Value
    inf: Value
    in_place: bool


def steps(in_place: bool) -> int:
    """How many steps `finish` has."""
    return 4 if in_place else 5


def finish(p: Pipeline, fmt: FloatFormat, raw: Raw, faults: Faults | None, unit: str) -> Value:
    """The rounded bits of ``raw``, some steps later.

    1. move down by the two largest distances; see what will be infinite or NaN
    2. by the two next
    3. by the two smallest; not if ``in_place``
    4. by the smallest of all, if ``in_place``; take out the top bit; decide the rounding; put in special results
    5. add the top bits and the rounding, through fraction and exponent
    """
    special = raw.nan | raw.inf | _too_large(fmt, raw.exponent)
    # One less than the largest finite exponent: infinite from 2 up.
    edge = raw.exponent == fmt.exponent_max - 2
    kept = {
        "exponent": raw.exponent[: fmt.exponent] | special.replicate(fmt.exponent),
        "special": special,
        "edge": edge,
        "sign": raw.sign,
        "nan": raw.nan,
    }
    value, amount, sticky = raw.value, raw.amount, raw.sticky
    for lowest in _lowest_of_each(len(amount), raw.in_place):
        moved, lost = shift_right(p, value, amount[lowest:], fmt.fraction + 3, sticky, below=1 << lowest)
        lost = fault(faults, f"{unit}.sticky-dropped", lost, sticky)
        s = p.cut(value=moved, sticky=lost, amount=amount[:lowest], **kept)
        value, amount, sticky = s.value, s.amount, s.sticky
        kept = {name: getattr(s, name) for name in kept}
    last = amount[0] if raw.in_place else Const(0, 1)

    down = value[-1] | last
    two = value[-1] & ~last
    two = fault(faults, f"{unit}.exponent-of-two-and-over", two, Const(0, 1))
    one = Mux(last, value[-1], value[-2] & ~value[-1])
    one = fault(faults, f"{unit}.subnormal-exponent", one, ~two)
    fraction = Mux(down, value[2:-1], value[1:-2])
    guard = Mux(down, value[1], value[0])
    to_odd = fault(faults, f"{unit}.tie-away", fraction[0] | sticky | down & value[0], Const(1, 1))
    special = s.special | s.edge & value[-1]
    s = p.cut(
        fraction=Mux(special, Cat(Const(0, fmt.fraction - 1), s.nan), fraction),
        exponent=s.exponent,
        top=Cat(one, two) & ~s.special.replicate(2),
        up=guard & to_odd & ~special,
        sign=s.sign & ~s.nan,
    )
    # The rounding is the carry into the sum.
    rounded = Cat(s.up, s.fraction, s.exponent) + Cat(s.up, Const(0, fmt.fraction), s.top)
    return p.cut(o=Cat(rounded[1 : fmt.width], s.sign)).o


def _too_large(fmt: FloatFormat, exponent: Value) -> Value:
    return exponent[1 : fmt.exponent].all() | exponent[fmt.exponent :].any()


def _lowest_of_each(bits: int, in_place: bool) -> list[int]:
    """The lowest bit of the amount that each step of moving takes; of those left in place bit 0 is for later."""
    first = 1 if in_place else 0
    number = steps(in_place) - 2
    return [first + (bits - first) * (number - 1 - step) // number for step in range(number)]
