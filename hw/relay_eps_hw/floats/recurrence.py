"""One digit of a division and of a square root: non-restoring, so that a digit costs one carry chain and no choice.

A digit is 1 where the remainder after it is not below zero. One below zero is not put right at once. The next digit's
operand is added to it instead of subtracted, which comes to the same: 2*(r + d) - d = 2*r + d.

The lowest bits of a new remainder do not depend on whether it was added or subtracted: they are worked out apart, and
the carry chain is that much shorter.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Value

from relay_eps_hw.floats.pipeline import Pipeline


def divide_first(dividend: Value, divisor: Value) -> Value:
    """The first remainder of a division, after the digit of weight 1, as `divide_digit` gives the others.

    Args:
        dividend, divisor (precision): both with their top bit set.
    """
    return (dividend - divisor)[: len(dividend) + 1]


def divide_digit(p: Pipeline, remainder: Value, divisor: Value) -> Value:
    """The remainder of a division after its next digit.

    With ``-divisor <= remainder < divisor``, and `r` the remainder put right (the divisor added to a negative one),
    the next one obeys the same bounds, and put right it is ``2*r - digit*divisor``.

    Args:
        remainder (precision + 1): two's complement.
        divisor (precision): not 0.
    """
    add = remainder[-1]
    # Below the carry chain: 0 plus or minus the divisor's lowest bit. A 1 cannot be subtracted without a borrow.
    return Cat(divisor[0], _add_or_subtract(p, remainder[:-1], divisor[1:], add, add | divisor[0]))


def divide_put_right(p: Pipeline, remainder: Value, divisor: Value) -> Value:
    """The remainder of a division, with the divisor added to it if it is below zero; as wide as the divisor."""
    addend = divisor & remainder[-1].replicate(len(divisor))
    return _add_or_subtract(p, remainder[:-1], addend, Const(1, 1), Const(1, 1))


def root_first(radicand: Value) -> Value:
    """The first remainder of a square root, as `root_digit` gives the others; the first digit is 1.

    Args:
        radicand (2): the first two bits of what the root is taken of, not 0.
    """
    return Cat((radicand - 1)[:2], Const(0, 1))


def root_digit(p: Pipeline, remainder: Value, root: Value, radicand: Value | None) -> Value:
    """The remainder of a square root after its next digit; it is a bit wider.

    With ``root`` the digits so far, ``-(2*root + 1) <= remainder <= 2*root``, and `r` the remainder put right
    (2*root + 1 added to a negative one), the next one obeys the same bounds for the root with its new digit, and put
    right it is ``4*r + radicand - digit*(4*root + 1)``.

    Args:
        remainder (n + 2): two's complement.
        root (n): the digits so far.
        radicand (2): the next two bits of what the root is taken of; None where there are only zeros left.
    """
    # 4*root + 1 is subtracted, or 4*root + 3 added: below the carry chain, 1 subtracted or, the same with a carry, 3
    # added.
    low, borrow = (Const(3, 2), Const(1, 1)) if radicand is None else ((radicand - 1)[:2], ~radicand.any())
    return Cat(low, _add_or_subtract(p, remainder[:-1], root, remainder[-1], borrow))


def _add_or_subtract(p: Pipeline, a: Value, b: Value, add: Value, borrow: Value) -> Value:
    """``a - b - borrow`` or ``a + b + 1 - borrow``, as wide as ``a``; one carry chain.

    Always a subtraction, of ``b`` or its complement: of a sum tools may take either operand for the one that makes the
    carry, and if that is no plain register it costs a LUT more for each bit.
    """
    width = len(a)
    b = Cat(b, Const(0, width - len(b))) ^ add.replicate(width)
    # The borrow comes in through a bit below both.
    return p.share((Cat(Const(0, 1), a) - Cat(borrow, b))[1 : width + 1])
