"""When each value enters and leaves a lane, and how deep its units are cut."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Depths:
    """The registers in each unit of a lane. The bits do not depend on them; area and clock do."""

    widen: int
    multiply: int
    square: int
    root_multiply: int
    add: int
    add_non_negative: int
    root: int
    divide: int
    narrow: int


@dataclass(frozen=True)
class Timing:
    """Clocks after an element's entry: when a lane samples each scalar, and when each output is there.

    ``scalars`` maps each name of `SCALARS`; ``w_format`` is sampled like them. g, m, v and p are sampled at 0.
    ``nonfinite`` says when it is known whether the gradient was infinite or NaN. ``wire`` is the last output.
    """

    scalars: dict[str, int]
    w_format: int
    nonfinite: int
    m: int
    v: int
    p: int
    wire: int


def lane_timing(d: Depths) -> Timing:
    """The timing of a lane whose units have the depths ``d``."""
    wide = d.widen
    gs = wide + d.multiply
    m = gs + d.multiply + d.add
    square = gs + d.square
    v = square + d.multiply + d.add_non_negative
    root = v + d.root
    scaled_root = root + d.root_multiply
    divisor = scaled_root + d.add_non_negative
    quotient = divisor + d.divide
    p = quotient + d.multiply + d.add
    return Timing(
        scalars={
            "scale": wide,
            "b1": gs,
            "c1": gs,
            "b2": square,
            "c2": square,
            "r2": root,
            "eps": scaled_root,
            "k": quotient,
            "s": quotient,
        },
        w_format=p,
        nonfinite=wide,
        m=m,
        v=v,
        p=p,
        wire=p + d.narrow,
    )


#: Every step of every unit is a register stage: two or three levels of logic, or one carry chain, between registers.
DEEP = Depths(
    widen=3,
    multiply=9,
    square=9,
    root_multiply=9,
    add=12,
    add_non_negative=9,
    root=29,
    divide=37,
    narrow=4,
)
#: For simulation: the same bits, few registers to evaluate.
SHALLOW = Depths(
    widen=1,
    multiply=1,
    square=1,
    root_multiply=1,
    add=1,
    add_non_negative=1,
    root=1,
    divide=1,
    narrow=1,
)
