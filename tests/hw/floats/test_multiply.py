"""Multiplication: every kind at every depth, on every target, and in odd formats.

That the results are SoftFloat's, and right for all operands of small formats, is tested for all units together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.multiply import Multiply, Operands, Square
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.targets import Target
from relay_eps_sim.units import SimulatedUnit
from tests.hw import rational
from tests.hw.floats import bench
from tests.hw.models import MULT18X18D
from tests.hw.operands import random_pairs, special_pairs
from tests.hw.oracle import differences

Bits = NDArray[np.uint32]
SIGN = np.uint32(FP32.negative_zero)
EXPONENT = np.uint32(FP32.infinity)
KINDS = (*Operands, "square")


def make(kind: Operands | str, fmt: FloatFormat = FP32, **arguments: Any) -> FloatUnit:
    """The unit for a kind of operands, or the one that squares."""
    return Multiply(fmt, kind=kind, **arguments) if isinstance(kind, Operands) else Square(fmt, **arguments)


def promised(kind: Operands | str, a: Bits, b: Bits) -> tuple[Bits, ...]:
    """Operands such as a unit promises to take, made of any: fp32."""
    scalar = np.where((b & EXPONENT == 0) | (b & EXPONENT == EXPONENT), np.uint32(0), b)
    if kind is Operands.SCALAR:
        return a, scalar
    if kind is Operands.ROOT:
        with np.errstate(invalid="ignore"):
            return np.sqrt((a & ~SIGN).view(np.float32)).view(np.uint32), scalar & ~SIGN
    return (a,) if kind == "square" else (a, b)


def expected(operands: tuple[Bits, ...]) -> Bits:
    """numpy's products, which are rounded to nearest even."""
    with np.errstate(all="ignore"):
        return (operands[0].view(np.float32) * operands[-1].view(np.float32)).view(np.uint32)


def wrong(got: Bits, operands: tuple[Bits, ...]) -> list[str]:
    """The operands of the first wrong results."""
    places = differences(got, expected(operands))
    return [" * ".join(f"{bits[k]:#010x}" for bits in operands) + f" = {got[k]:#010x}" for k in places[:5]]


def mixture(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    """Special values and random ones, half of each."""
    a, b = special_pairs()
    chosen = rng.integers(len(a), size=count // 2)
    random_a, random_b = random_pairs(rng, count - count // 2)
    return np.concatenate([a[chosen], random_a]), np.concatenate([b[chosen], random_b])


@pytest.mark.parametrize("kind", KINDS)
def test_no_depth_changes_a_bit_and_no_stall_loses_one(rng: np.random.Generator, kind: Operands | str):
    for depth in range(1, make(kind, depth=None).steps + 1):
        operands = promised(kind, *mixture(rng, 400))
        unit = make(kind, depth=depth)
        assert unit.latency == depth
        assert not wrong(bench.run(unit, *operands, stalled=0.3, rng=rng), operands), f"depth {depth}"


@pytest.mark.parametrize("depth", [1, None])
@pytest.mark.parametrize("kind", [Operands.GENERAL, Operands.ROOT, "square"])
def test_lattice_multipliers_give_the_same_bits_as_late(
    rng: np.random.Generator, kind: Operands | str, depth: int | None
):
    unit = make(kind, depth=depth, target=Target.ECP5)
    assert unit.latency == make(kind, depth=depth).latency
    operands = promised(kind, *special_pairs())
    more = promised(kind, *random_pairs(rng, 200_000))
    with SimulatedUnit(unit, models=MULT18X18D) as compiled:
        assert not wrong(compiled.run(*operands, stalled=0.3), operands)
        assert not wrong(compiled.run(*more), more)


@pytest.mark.parametrize("fmt", [FloatFormat(3, 2), FloatFormat(3, 12), FloatFormat(11, 4)], ids=str)
@pytest.mark.parametrize("kind", [Operands.GENERAL, "square"])
def test_formats_with_much_more_of_one_field_than_of_the_other(
    rng: np.random.Generator, kind: Operands | str, fmt: FloatFormat
):
    a, b = (rng.integers(1 << fmt.width, size=600, dtype=np.uint32) for _ in range(2))
    # Half of them with one of the lowest exponents.
    low = np.where(rng.random(600) < 0.5, np.uint32(fmt.negative_zero | (2 << fmt.fraction) - 1), np.uint32(-1 % 2**32))
    operands = (a & low,) if kind == "square" else (a & low, b)
    exact = [rational.multiply(fmt, int(x), int(y)) for x, y in zip(operands[0], operands[-1], strict=True)]
    got = bench.run(make(kind, fmt, depth=3), *operands, rng=rng)
    assert not differences(got, np.array(exact, np.uint32), fmt).size


@pytest.mark.parametrize("unit", [Multiply, Square])
def test_what_is_no_format_is_refused(unit: Callable[..., FloatUnit]):
    with pytest.raises(ValueError, match="use FP32, BF16, FP16 or FloatFormat"):
        unit("fp32", depth=1)


@pytest.mark.parametrize("kind", ["scalar", "bogus", None])
def test_what_is_no_kind_of_operands_is_refused(kind: Any):
    with pytest.raises(ValueError, match=r"use one of Operands\.GENERAL, Operands\.SCALAR, Operands\.ROOT"):
        Multiply(kind=kind)


@pytest.mark.parametrize("unit", [Multiply, Square])
def test_a_target_may_be_named_and_no_other_is_taken(unit: Callable[..., Any]):
    assert unit(target="ecp5").target is Target.ECP5
    with pytest.raises(ValueError, match="'zynq' is not a Target: use one of generic, ecp5"):
        unit(target="zynq")
