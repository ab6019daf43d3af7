"""The shifters and the count of leading zeros, against Python's integers."""

from __future__ import annotations

import random
from functools import partial

import pytest

from relay_eps_hw.floats.shift import leading_zeros, shift_left, shift_right, shift_right_sticky
from tests.hw.floats.combinational import evaluate

WIDTHS = [1, 2, 3, 5, 8, 13, 24]


def values(dice: random.Random, width: int) -> list[int]:
    """Zero, each single bit, all ones, and random values with random numbers of leading zeros."""
    edges = [0, (1 << width) - 1, *(1 << bit for bit in range(width))]
    return edges + [dice.getrandbits(width) >> dice.randrange(width) for _ in range(40)]


@pytest.fixture
def dice(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.mark.parametrize("width", WIDTHS)
def test_leading_zeros_are_counted_and_of_nothing_there_are_as_many_as_bits(dice: random.Random, width: int):
    rows = [(value,) for value in values(dice, width)]
    assert evaluate(leading_zeros, [width], rows) == [(width - value.bit_length(),) for (value,) in rows]


@pytest.mark.parametrize("below", [1, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_move_up_keeps_the_width_and_brings_in_zeros(dice: random.Random, width: int, below: int):
    rows = [(value, count) for value in values(dice, width) for count in range(8)]
    got = evaluate(partial(shift_left, below=below), [width, 3], rows)
    assert got == [((value << count * below) % (1 << width),) for value, count in rows]


@pytest.mark.parametrize("distance", [1, 3, 8, 30])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_sticky_move_down_gathers_what_falls_out_in_the_lowest_bit(dice: random.Random, width: int, distance: int):
    def moved(value: int) -> int:
        # What stays above the lowest bit; and whether anything was in it or fell past it.
        kept = value >> (distance + 1) << 1
        return kept | (value % (1 << min(distance + 1, width)) != 0)

    rows = [(value, where) for value in values(dice, width) for where in (0, 1)]
    got = evaluate(lambda p, value, where: shift_right_sticky(p, value, where, distance), [width, 1], rows)
    assert got == [(moved(value) if where else value,) for value, where in rows]


@pytest.mark.parametrize(("bits", "below"), [(1, 1), (2, 1), (2, 4), (3, 2)])
@pytest.mark.parametrize("width", [8, 13, 24])
def test_a_move_down_reports_all_that_has_fallen_out(dice: random.Random, width: int, bits: int, below: int):
    rows = [
        (value, amount, sticky)
        for value in values(dice, width)
        for amount in range(1 << bits)
        for sticky in (0, 1)
        if value >> amount * below < 1 << 6
    ]

    def make(p, value, amount, sticky):
        return shift_right(p, value, amount, 6, sticky, below=below)

    got = evaluate(make, [width, bits, 1], rows)
    assert rows
    for (value, amount, sticky), (kept, lost) in zip(rows, got, strict=True):
        distance = amount * below
        assert kept % (1 << 6) == value >> distance
        assert lost == (sticky | (value % (1 << distance) != 0))
