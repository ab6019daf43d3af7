"""What goes through the lanes: operations, their scalars, and one clock's worth of elements."""

from __future__ import annotations

from enum import IntEnum

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

#: The scalars of an operation, in the order of the arithmetic.
SCALARS = ("scale", "b1", "c1", "b2", "c2", "r2", "eps", "k", "s")
#: The scalars that may be negative.
SIGNED = ("scale", "k")
#: The lane counts that a core can have.
LANE_COUNTS = (1, 2, 4, 8, 16)


def check_lanes(lanes: object) -> None:
    """ValueError, with those allowed, for a number of lanes that is not one of `LANE_COUNTS`."""
    if type(lanes) is not int or lanes not in LANE_COUNTS:
        raise ValueError(f"{lanes!r} lanes are not supported: use one of {', '.join(map(str, LANE_COUNTS))}")


class Operation(IntEnum):
    """What is done with each element; which scalars it uses, and which outputs hold its result.

    ======================  =======================  ============  =====================================
    operation               scalars                  outputs       rule
    ======================  =======================  ============  =====================================
    ``FOLD``                scale, b1, c1, b2, c2    m, v          the gradient enters the moments
    ``APPLY``               r2, eps, k, s            p, wire       the weights move
    ``FOLD_APPLY``          all                      m, v, p,      both, in one pass
                                                     wire
    ``ACCUMULATE``          none                     m             m + g; where ``first``, g alone
    ``FETCH``               none                     wire          p in the wire format
    ======================  =======================  ============  =====================================

    Outputs that an operation does not name hold no meaning.
    """

    FOLD = 0
    APPLY = 1
    FOLD_APPLY = 2
    ACCUMULATE = 3
    FETCH = 4


def scalars_layout(width: int) -> data.StructLayout:
    """The scalars of an operation, ``width`` bits each."""
    return data.StructLayout(dict.fromkeys(SCALARS, width))


def beat_in_layout(lanes: int, width: int) -> data.StructLayout:
    """One clock's input of ``lanes`` lanes.

    Fields:
        operation (3): an `Operation`.
        first (1): this is the mini-batch's first gradient: the moments decay, a sum starts.
        last (1): this is the operation's last beat.
        g_format (2), w_format (2): the `WireFormat` of the gradients and of the wire copy.
        scalars: fp32 bits; all nine are checked, and those that the operation does not use may be 0.
        mask (lanes): bit k says whether lane k holds an element.
        elements (lanes × g, m, v, p): a 16-bit gradient lies in the low half of g.
    """
    element = data.StructLayout({"g": width, "m": width, "v": width, "p": width})
    return data.StructLayout(
        {
            "operation": 3,
            "first": 1,
            "last": 1,
            "g_format": 2,
            "w_format": 2,
            "scalars": scalars_layout(width),
            "mask": lanes,
            "elements": data.ArrayLayout(element, lanes),
        }
    )


def beat_out_layout(lanes: int, width: int) -> data.StructLayout:
    """One clock's output of ``lanes`` lanes, one beat for each that went in, in order.

    Fields:
        last (1), mask (lanes): as they came in; a lane without an element holds no meaning.
        nonfinite (1): a gradient of this operation, up to this beat, was infinite or NaN. Sticky within an operation.
        outside (1): a scalar of this operation, up to this beat, was outside the contract: not finite, subnormal, -0,
            or negative where it must not be. Its results hold no meaning. Sticky within an operation.
        elements (lanes × m, v, p, wire): a 16-bit wire copy lies in the low half of wire, the high half is 0.
    """
    element = data.StructLayout({"m": width, "v": width, "p": width, "wire": width})
    return data.StructLayout(
        {
            "last": 1,
            "mask": lanes,
            "nonfinite": 1,
            "outside": 1,
            "elements": data.ArrayLayout(element, lanes),
        }
    )


def lane_ports(width: int) -> dict[str, wiring.Member]:
    """The ports of a lane for elements of ``width`` bits; `lane.Lane` says what they are."""
    scalars = {name: In(width) for name in SCALARS}
    operands = {name: In(width) for name in ("g", "m", "v", "p")}
    results = {f"o_{name}": Out(width) for name in ("m", "v", "p", "wire")}
    return {"g_format": In(2), **operands, **scalars, "w_format": In(2), "nonfinite": Out(1), **results}
