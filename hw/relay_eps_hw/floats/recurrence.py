"""One digit of a division and of a square root: non-restoring, so that a digit costs one carry chain and no choice.

A remainder below zero is not put right at once. The next digit's operand is added to it instead of subtracted, which
comes to the same: 2*(r + d) - d = 2*r + d.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Value

from relay_eps_hw.floats.pipeline import Pipeline


def add_or_subtract(p: Pipeline, a: Value, b: Value, add: Value) -> Value:
    """``a + b`` or ``a - b``, as wide as ``a``; two's complement, one carry chain."""
    width = len(a)
    b = Cat(b, Const(0, width - len(b)))
    # The carry comes in through a bit below both.
    total = Cat(Const(1, 1), a) + Cat(~add, b ^ (~add).replicate(width))
    return p.share(total[1 : width + 1])


def divide_digit(p: Pipeline, remainder: Value, divisor: Value) -> tuple[Value, Value]:
    """The next remainder and digit of a division.

    With ``-divisor <= remainder < divisor``, and `r` the remainder put right (the divisor added to a negative one),
    the next one obeys the same bounds, and put right it is ``2*r - digit*divisor``.

    Args:
        remainder (precision + 1): two's complement.
        divisor (precision): not 0.
    """
    moved = Cat(Const(0, 1), remainder)[: len(remainder)]
    following = add_or_subtract(p, moved, divisor, remainder[-1])
    return following, ~following[-1]


def root_digit(p: Pipeline, remainder: Value, root: Value, radicand: Value) -> tuple[Value, Value]:
    """The next remainder and digit of a square root.

    With ``root`` the digits so far, ``-(2*root + 1) <= remainder <= 2*root``, and `r` the remainder put right
    (2*root + 1 added to a negative one), the next one obeys the same bounds for the root with its new digit, and put
    right it is ``4*r + radicand - digit*(4*root + 1)``.

    Args:
        remainder (n + 2): two's complement.
        root (n): the digits so far.
        radicand (2): the next two bits of what the root is taken of.

    Returns:
        The remainder, a bit wider, and the digit.
    """
    moved = Cat(radicand, remainder)[: len(remainder) + 1]
    add = remainder[-1]
    # 4*root + 1 to subtract, 4*root + 3 to add.
    operand = Cat(Const(1, 1), add, root)
    following = add_or_subtract(p, moved, operand, add)
    return following, ~following[-1]
