"""One digit of a division and of a square root: non-restoring, so that a digit costs one carry chain and no choice.

A remainder below zero is not put right at once. The next digit's operand is added to it instead of subtracted, which
comes to the same: 2*(r + d) - d = 2*r + d.

The lowest bits of a new remainder do not depend on whether it was added or subtracted: they are worked out apart, and
the carry chain is that much shorter.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Value

from relay_eps_hw.floats.pipeline import Pipeline


def divide_first(p: Pipeline, dividend: Value, divisor: Value) -> tuple[Value, Value]:
    """The first remainder and digit of a division, of weight 1, as `divide_digit` gives the others.

    Args:
        dividend, divisor (precision): both with their top bit set.
    """
    remainder = p.share((dividend - divisor)[: len(dividend) + 1])
    return remainder, ~remainder[-1]


def divide_digit(p: Pipeline, remainder: Value, divisor: Value) -> tuple[Value, Value]:
    """The next remainder and digit of a division.

    With ``-divisor <= remainder < divisor``, and `r` the remainder put right (the divisor added to a negative one),
    the next one obeys the same bounds, and put right it is ``2*r - digit*divisor``.

    Args:
        remainder (precision + 1): two's complement.
        divisor (precision): not 0.
    """
    add = remainder[-1]
    # Below the carry chain: 0 plus or minus the divisor's lowest bit. A 1 cannot be subtracted without a borrow.
    carry = ~(add | divisor[0])
    following = p.share(Cat(divisor[0], _add_or_complement(remainder[:-1], divisor[1:], add, carry)))
    return following, ~following[-1]


def root_first(radicand: Value) -> Value:
    """The first remainder of a square root, as `root_digit` gives the others; the first digit is 1.

    Args:
        radicand (2): the first two bits of what the root is taken of, not 0.
    """
    return Cat((radicand - 1)[:2], Const(0, 1))


def root_digit(p: Pipeline, remainder: Value, root: Value, radicand: Value | None) -> tuple[Value, Value]:
    """The next remainder and digit of a square root.

    With ``root`` the digits so far, ``-(2*root + 1) <= remainder <= 2*root``, and `r` the remainder put right
    (2*root + 1 added to a negative one), the next one obeys the same bounds for the root with its new digit, and put
    right it is ``4*r + radicand - digit*(4*root + 1)``.

    Args:
        remainder (n + 2): two's complement.
        root (n): the digits so far.
        radicand (2): the next two bits of what the root is taken of; None where there are only zeros left.

    Returns:
        The remainder, a bit wider, and the digit.
    """
    # 4*root + 1 is subtracted, or 4*root + 3 added: below the carry chain, 1 subtracted or, the same with a carry, 3
    # added.
    if radicand is None:
        low, carry = Const(3, 2), Const(0, 1)
    else:
        low, carry = (radicand - 1)[:2], radicand.any()
    following = p.share(Cat(low, _add_or_complement(remainder[:-1], root, remainder[-1], carry)))
    return following, ~following[-1]


def _add_or_complement(a: Value, b: Value, add: Value, carry: Value) -> Value:
    """``a + b + carry``, or ``a - b - 1 + carry``, as wide as ``a``; two's complement, one carry chain."""
    width = len(a)
    b = Cat(b, Const(0, width - len(b)))
    if isinstance(carry, Const):
        return (a + (b ^ (~add).replicate(width)) + carry)[:width]
    # The carry comes in through a bit below both.
    total = Cat(Const(1, 1), a) + Cat(carry, b ^ (~add).replicate(width))
    return total[1 : width + 1]
