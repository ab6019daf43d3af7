"""The digits of a quotient and of a square root, proved: what is left over after each is within its bounds.

From the first digit and any next one all follow by induction. With the remainder put right (`right` below):

- Of a division, let ``dividend * 2**k == quotient * divisor + right``. A digit more is
  ``dividend * 2**(k + 1) == (2*quotient + digit) * divisor + (2*right - digit*divisor)``: the same for ``k + 1``.
- Of a root, let ``radicand == root**2 + right``. With two bits more of the radicand and a digit more of the root,
  ``4*radicand + two == (2*root + digit)**2 + (4*right + two - digit*(4*root + 1))``: the same again.

Since ``0 <= right < divisor``, or ``0 <= right <= 2*root``, the digits are those of the quotient or root rounded down,
and it is exact where ``right`` is 0.

The logic is that of the units, at the widths of fp32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Assert, Assume, Const, Elaboratable, Module, Mux, Signal, Value, signed

from relay_eps_hw.floats.formats import FP32
from relay_eps_hw.floats.pipeline import Pipeline
from relay_eps_hw.floats.recurrence import divide_digit, divide_first, divide_put_right, root_digit, root_first
from tests.hw.formal.prove import Outcome, prove

WIDTH = FP32.precision
#: Digits of a root that there are before the next one: few, some, and all but the last.
DIGITS = (1, 2, 11, WIDTH)


def put_right(remainder: Value, divisor: Value) -> Value:
    """A remainder below zero with the divisor added."""
    return remainder + Mux(remainder < 0, divisor, 0)


class Claim(Elaboratable, ABC):
    """Something claimed of one digit; ``free`` are its operands."""

    free: Sequence[Signal]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.claim(Pipeline(m, Const(1), (1,), 1))
        return m

    @abstractmethod
    def claim(self, p: Pipeline) -> list[Any]:
        """What is taken to be so, and what is then claimed."""


class DivideFirst(Claim):
    """The first digit of a quotient of significands."""

    def __init__(self, stage: Callable[..., Value] = divide_first) -> None:
        self.stage = stage
        self.dividend, self.divisor = Signal(WIDTH), Signal(WIDTH)
        self.free = [self.dividend, self.divisor]

    def claim(self, p: Pipeline) -> list[Any]:
        remainder = self.stage(self.dividend, self.divisor).as_signed()
        digit, right = remainder >= 0, put_right(remainder, self.divisor)
        return [
            Assume(self.dividend[-1] & self.divisor[-1]),
            Assert((right >= 0) & (right < self.divisor)),
            Assert(right == self.dividend - Mux(digit, self.divisor, 0)),
        ]


class DivideDigit(Claim):
    """Any other digit of a quotient."""

    def __init__(self, stage: Callable[..., Value] = divide_digit) -> None:
        self.stage = stage
        self.remainder, self.divisor = Signal(signed(WIDTH + 1)), Signal(WIDTH)
        self.free = [self.remainder, self.divisor]

    def claim(self, p: Pipeline) -> list[Any]:
        following = self.stage(p, self.remainder.as_unsigned(), self.divisor).as_signed()
        digit = following >= 0
        right, next_right = put_right(self.remainder, self.divisor), put_right(following, self.divisor)
        return [
            Assume((right >= 0) & (right < self.divisor)),
            Assert((next_right >= 0) & (next_right < self.divisor)),
            Assert(next_right == 2 * right - Mux(digit, self.divisor, 0)),
            Assert(divide_put_right(p, following.as_unsigned(), self.divisor) == next_right),
        ]


class RootFirst(Claim):
    """The first digit of a root, which is 1."""

    def __init__(self, stage: Callable[..., Value] = root_first) -> None:
        self.stage = stage
        self.radicand = Signal(2)
        self.free = [self.radicand]

    def claim(self, p: Pipeline) -> list[Any]:
        right = self.stage(self.radicand).as_signed()
        return [
            Assume(self.radicand != 0),
            Assert((right >= 0) & (right <= 2)),
            Assert(right == self.radicand - 1),
        ]


class RootDigit(Claim):
    """The digit of a root after so many others; ``more`` of the radicand there is, or only zeros."""

    def __init__(self, digits: int, *, more: bool = True, stage: Callable[..., Value] = root_digit) -> None:
        self.stage = stage
        self.remainder, self.root = Signal(signed(digits + 2)), Signal(digits)
        self.two = Signal(2) if more else None
        self.free = [self.remainder, self.root, *([self.two] if self.two is not None else [])]

    def claim(self, p: Pipeline) -> list[Any]:
        following = self.stage(p, self.remainder.as_unsigned(), self.root, self.two).as_signed()
        digit = following >= 0
        right = put_right(self.remainder, 2 * self.root + 1)
        next_root = 2 * self.root + digit
        next_right = put_right(following, 2 * next_root + 1)
        two = 0 if self.two is None else self.two
        return [
            Assume((right >= 0) & (right <= 2 * self.root)),
            Assert((next_right >= 0) & (next_right <= 2 * next_root)),
            Assert(next_right == 4 * right + two - Mux(digit, 4 * self.root + 1, 0)),
        ]


def outcome(claim: Claim, folder: Path, *, refute: bool = False) -> Outcome:
    # One clock: there is no register in it.
    return prove(claim, list(claim.free), folder, steps=1, refute=refute)


@pytest.mark.parametrize("claim", [DivideFirst(), DivideDigit()], ids=["first", "next"])
def test_each_digit_of_a_quotient_leaves_less_than_the_divisor(tmp_path: Path, claim: Claim):
    result = outcome(claim, tmp_path)
    assert result.proved, result.log


@pytest.mark.parametrize(
    "claim",
    [RootFirst(), *(RootDigit(digits, more=more) for digits in DIGITS for more in (True, False))],
    ids=["first", *(f"{digits}-{more}" for digits in DIGITS for more in ("more", "zeros"))],
)
def test_each_digit_of_a_root_leaves_no_more_than_twice_the_root(tmp_path: Path, claim: Claim):
    result = outcome(claim, tmp_path)
    assert result.proved, result.log


SLIPS = {
    "dividend and divisor the other way round": DivideFirst(lambda a, b: divide_first(b, a)),
    "subtracted always": DivideDigit(lambda p, r, d: divide_digit(p, r & (1 << WIDTH) - 1, d)),
    "a bit of the divisor lost": DivideDigit(lambda p, r, d: divide_digit(p, r, d & ~1)),
    "the digit inverted": DivideDigit(lambda p, r, d: divide_digit(p, r, d) ^ (1 << WIDTH)),
    "nothing taken from the radicand": RootFirst(lambda radicand: radicand),
    "the radicand's bits swapped": RootDigit(4, stage=lambda p, r, root, two: root_digit(p, r, root, two[::-1])),
    "more of the radicand than zeros": RootDigit(4, stage=lambda p, r, root, two: root_digit(p, r, root, None)),
}


@pytest.mark.parametrize("claim", SLIPS.values(), ids=SLIPS.keys())
def test_a_slip_breaks_the_proof(tmp_path: Path, claim: Claim):
    assert outcome(claim, tmp_path, refute=True).refuted
