"""Every pair of operands in small formats, against exact rationals; and special units against general ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from relay_eps_hw.floats.add import Add
from relay_eps_hw.floats.divide import Divide
from relay_eps_hw.floats.formats import FloatFormat
from relay_eps_hw.floats.multiply import Multiply, Operands, Square
from relay_eps_hw.floats.root import Root
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_sim.units import SimulatedUnit
from tests.hw import rational
from tests.hw.oracle import differences, is_nan

TINY = FloatFormat(4, 3)
#: Where what the adder normalises, 9 bits, is padded to a power of two: by more than any of the others.
PADDED = FloatFormat(4, 4)
SMALL = FloatFormat(5, 4)
#: More exponent than fraction, and the other way round.
ODD = FloatFormat(3, 5)

FORMATS = [
    pytest.param(TINY, id="4-3"),
    pytest.param(SMALL, id="5-4", marks=pytest.mark.slow),
    pytest.param(ODD, id="3-5", marks=pytest.mark.slow),
    pytest.param(PADDED, id="4-4", marks=pytest.mark.slow),
]


def all_pairs(fmt: FloatFormat) -> tuple[np.ndarray, np.ndarray]:
    every = np.arange(1 << fmt.width, dtype=np.uint32)
    a, b = np.meshgrid(every, every, indexing="ij")
    return a.ravel(), b.ravel()


def run(unit: FloatUnit, *operands: np.ndarray) -> np.ndarray:
    with SimulatedUnit(unit) as sim:
        return sim.run(*operands)


@cache
def expected(operation: str, fmt: FloatFormat) -> np.ndarray:
    function: Callable[[FloatFormat, int, int], int] = getattr(rational, operation)
    a, b = all_pairs(fmt)
    return np.array([function(fmt, int(x), int(y)) for x, y in zip(a, b, strict=True)], np.uint32)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    ("operation", "make"),
    [
        ("add", lambda fmt, depth: Add(fmt, depth=depth)),
        ("multiply", lambda fmt, depth: Multiply(fmt, depth=depth)),
        ("divide", lambda fmt, depth: Divide(fmt, depth=depth)),
    ],
    ids=["add", "multiply", "divide"],
)
def test_all_pairs_are_correctly_rounded(fmt: FloatFormat, operation: str, make: Callable[..., FloatUnit]):
    wanted = expected(operation, fmt)
    for depth in (1, None):
        assert not differences(run(make(fmt, depth), *all_pairs(fmt)), wanted, fmt).size


def test_all_sums_of_a_padded_format_are_correctly_rounded():
    assert not differences(run(Add(PADDED, depth=2), *all_pairs(PADDED)), expected("add", PADDED), PADDED).size


@pytest.mark.parametrize("fmt", [TINY, SMALL, FloatFormat(5, 10)], ids=str)
def test_all_roots_are_correctly_rounded(fmt: FloatFormat):
    every = np.arange(1 << fmt.width, dtype=np.uint32)
    wanted = np.array([rational.root(fmt, int(a)) for a in every], np.uint32)
    assert not differences(run(Root(fmt, depth=3), every), wanted, fmt).size


@pytest.mark.parametrize("fmt", FORMATS)
def test_special_units_are_the_general_ones_on_what_they_promise(fmt: FloatFormat):
    a, b = all_pairs(fmt)
    exponent_a, exponent_b = (x >> fmt.fraction & fmt.exponent_max for x in (a, b))
    sign_a, sign_b = (x >> (fmt.width - 1) for x in (a, b))
    scalar_b = (b == 0) | (exponent_b > 0) & (exponent_b < fmt.exponent_max)
    positive_a, positive_b = (sign_a == 0) | is_nan(a, fmt), (sign_b == 0) | is_nan(b, fmt)
    root_a = positive_a & ((exponent_a > 0) | (a == 0))
    for unit, operation, promised in (
        (Add(fmt, depth=2, non_negative=True), "add", positive_a & positive_b),
        (Multiply(fmt, depth=2, kind=Operands.SCALAR), "multiply", scalar_b),
        (Multiply(fmt, depth=2, kind=Operands.ROOT), "multiply", root_a & scalar_b & (sign_b == 0)),
        (Divide(fmt, depth=2, positive_divisor=True), "divide", positive_b),
    ):
        got = run(unit, a[promised], b[promised])
        assert not differences(got, expected(operation, fmt)[promised], fmt).size, type(unit).__name__


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_square_is_a_product_with_itself(fmt: FloatFormat):
    every = np.arange(1 << fmt.width, dtype=np.uint32)
    diagonal = expected("multiply", fmt).reshape(len(every), -1).diagonal()
    assert not differences(run(Square(fmt, depth=2), every), diagonal, fmt).size


def test_a_root_of_a_format_whose_roots_can_be_subnormal_is_refused():
    with pytest.raises(ValueError, match="fraction bits"):
        Root(ODD, depth=1)


@pytest.mark.parametrize("make", [Add, Multiply, Square, Divide, Root], ids=lambda make: make.__name__)
def test_depths_that_a_unit_does_not_have_are_refused_with_those_it_has(make: Callable[..., FloatUnit]):
    deepest = make(depth=None).depth
    for depth in (0, -1, deepest + 1, 2.0, True, "3"):
        with pytest.raises(ValueError, match=f"use 1 to {deepest}"):
            make(depth=depth)
