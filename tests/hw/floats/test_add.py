"""Addition: at every depth, near cancellation, and in odd formats.

That the results are SoftFloat's, and right for all operands of small formats, is tested for all units together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_hw.floats.add import Add
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_sim.units import SimulatedUnit
from tests.hw import rational
from tests.hw.floats import bench
from tests.hw.operands import cancellations, exponent_sweep, random_pairs, special_pairs
from tests.hw.oracle import differences, is_nan

Bits = NDArray[np.uint32]
SIGN = np.uint32(FP32.negative_zero)


def promised(a: Bits, b: Bits, *, non_negative: bool) -> tuple[Bits, Bits]:
    """Operands such as the adder promises to take, made of any."""
    if not non_negative:
        return a, b
    return np.where(is_nan(a), a, a & ~SIGN), np.where(is_nan(b), b, b & ~SIGN)


def wrong(got: Bits, a: Bits, b: Bits) -> list[str]:
    """The operands of the first results that are not numpy's, which are rounded to nearest even."""
    with np.errstate(all="ignore"):
        expected = (a.view(np.float32) + b.view(np.float32)).view(np.uint32)
    places = differences(got, expected)
    return [f"{a[k]:#010x} + {b[k]:#010x} = {got[k]:#010x}, not {expected[k]:#010x}" for k in places[:5]]


def mixture(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    """Special values, close exponents and random operands, a third of each."""
    parts = [special_pairs(), exponent_sweep(rng), random_pairs(rng, 5000)]
    chosen = [rng.integers(len(a), size=count // 3) for a, _ in parts]
    sides = zip(*((a[k], b[k]) for (a, b), k in zip(parts, chosen, strict=True)), strict=True)
    first, second = (np.concatenate(side) for side in sides)
    return first, second


@pytest.mark.parametrize("non_negative", [False, True])
def test_no_depth_changes_a_bit_and_no_stall_loses_one(rng: np.random.Generator, non_negative: bool):
    for depth in range(1, Add(non_negative=non_negative).steps + 1):
        a, b = promised(*mixture(rng, 600), non_negative=non_negative)
        unit = Add(depth=depth, non_negative=non_negative)
        assert unit.latency == depth
        assert not wrong(bench.run(unit, a, b, stalled=0.3, rng=rng), a, b), f"depth {depth}"


def test_what_cancels_at_any_exponent_is_exact(rng: np.random.Generator):
    a, b = cancellations(rng)
    with SimulatedUnit(Add(depth=2)) as compiled:
        assert not wrong(compiled.run(a, b), a, b)


def test_what_cancels_exactly_is_zero_and_negative_only_if_both_are(rng: np.random.Generator):
    one, zero = np.uint32(FP32.one), np.uint32(0)
    a = np.array([one, one | SIGN, zero, SIGN, zero, SIGN], np.uint32)
    b = np.array([one | SIGN, one, zero, SIGN, SIGN, zero], np.uint32)
    assert bench.run(Add(depth=2), a, b, rng=rng).tolist() == [0, 0, 0, SIGN, 0, 0]


@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize("fmt", [FloatFormat(3, 2), FloatFormat(3, 12), FloatFormat(8, 2), FloatFormat(11, 4)], ids=str)
def test_formats_with_much_more_of_one_field_than_of_the_other(
    rng: np.random.Generator, fmt: FloatFormat, non_negative: bool
):
    a, b = (rng.integers(1 << fmt.width, size=600, dtype=np.uint32) for _ in range(2))
    # Half of the pairs have exponents next to each other.
    near = rng.integers(-2, 3, size=300) << fmt.fraction
    b[::2] = np.clip(a[::2].astype(np.int64) + near, 0, (1 << fmt.width) - 1) ^ (
        rng.integers(2, size=300) << (fmt.width - 1)
    )
    if non_negative:
        a, b = (np.where(is_nan(bits, fmt), bits, bits & np.uint32(fmt.negative_zero - 1)) for bits in (a, b))
    exact = [rational.add(fmt, int(x), int(y)) for x, y in zip(a, b, strict=True)]
    got = bench.run(Add(fmt, depth=3, non_negative=non_negative), a, b, rng=rng)
    assert not differences(got, np.array(exact, np.uint32), fmt).size


def test_what_is_no_format_is_refused():
    no_format: Any = "fp32"
    with pytest.raises(ValueError, match="use FP32, BF16, FP16 or FloatFormat"):
        Add(no_format, depth=1)
