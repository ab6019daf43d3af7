"""When each value enters and leaves a lane, and how deep its units are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Depths:
    """The registers in each unit of a lane; None for as many as the unit has places for.

    The bits do not depend on them; area and clock do.
    """

    widen: int | None = None
    multiply: int | None = None
    square: int | None = None
    root_multiply: int | None = None
    add: int | None = None
    add_non_negative: int | None = None
    root: int | None = None
    divide: int | None = None
    narrow: int | None = None


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


def lane_timing(latency: Mapping[str, int]) -> Timing:
    """The timing of a lane whose units have these latencies, by the names of `Depths`."""
    wide = latency["widen"]
    gs = wide + latency["multiply"]
    m = gs + latency["multiply"] + latency["add"]
    square = gs + latency["square"]
    v = square + latency["multiply"] + latency["add_non_negative"]
    root = v + latency["root"]
    scaled_root = root + latency["root_multiply"]
    divisor = scaled_root + latency["add_non_negative"]
    quotient = divisor + latency["divide"]
    p = quotient + latency["multiply"] + latency["add"]
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
        wire=p + latency["narrow"],
    )


#: Every step of every unit is a register stage: two or three levels of logic, or one carry chain, between registers.
DEEP = Depths()
#: For simulation: the same bits, few registers to evaluate.
SHALLOW = Depths(1, 1, 1, 1, 1, 1, 1, 1, 1)
