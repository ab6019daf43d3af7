"""The square root: at every depth, near exact roots, and in odd formats.

That the results are SoftFloat's, and right for all operands of small formats, is tested for all units together; the
remainder of each digit is proved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.root import Root
from relay_eps_sim.units import SimulatedUnit
from tests.hw import rational
from tests.hw.floats import bench
from tests.hw.operands import SPECIALS, near_exact_roots, random_pairs
from tests.hw.oracle import differences

Bits = NDArray[np.uint32]


def wrong(got: Bits, a: Bits) -> list[str]:
    """The operands of the first results that are not numpy's, which are rounded to nearest even."""
    with np.errstate(invalid="ignore"):
        expected = np.sqrt(a.view(np.float32)).view(np.uint32)
    places = differences(got, expected)
    return [f"sqrt({a[k]:#010x}) = {got[k]:#010x}, not {expected[k]:#010x}" for k in places[:5]]


def mixture(rng: np.random.Generator, count: int) -> Bits:
    """Special values, nearly exact roots and random operands, a third of each; most of them not negative."""
    parts = [rng.choice(SPECIALS, count // 3), near_exact_roots(rng, count // 3), random_pairs(rng, count // 3)[0]]
    bits = np.concatenate(parts)
    return np.where(rng.random(len(bits)) < 0.9, bits & np.uint32(FP32.negative_zero - 1), bits)


def test_no_depth_changes_a_bit_and_no_stall_loses_one(rng: np.random.Generator):
    for depth in range(1, Root().steps + 1):
        a = mixture(rng, 90)
        unit = Root(depth=depth)
        assert unit.latency == depth
        assert not wrong(bench.run(unit, a, stalled=0.3, rng=rng), a), f"depth {depth}"


def test_specials_nearly_exact_and_random_roots_are_numpys(rng: np.random.Generator):
    magnitudes = random_pairs(rng, 20_000)[0] & np.uint32(FP32.negative_zero - 1)
    a = np.concatenate([SPECIALS, near_exact_roots(rng, 20_000), magnitudes])
    with SimulatedUnit(Root(depth=2)) as compiled:
        assert not wrong(compiled.run(a, stalled=0.3), a)


def test_of_minus_zero_it_is_minus_zero_and_of_what_is_below_zero_the_quiet_nan(rng: np.random.Generator):
    below = np.array([1, FP32.one, FP32.infinity], np.uint32) | np.uint32(FP32.negative_zero)
    a = np.concatenate([np.array([FP32.negative_zero], np.uint32), below])
    assert bench.run(Root(depth=2), a, rng=rng).tolist() == [FP32.negative_zero, FP32.nan, FP32.nan, FP32.nan]


@pytest.mark.parametrize("fmt", [FloatFormat(3, 2), FloatFormat(6, 20), FloatFormat(11, 4)], ids=str)
def test_formats_with_much_more_of_one_field_than_of_the_other(rng: np.random.Generator, fmt: FloatFormat):
    a = rng.integers(1 << fmt.width, size=600, dtype=np.uint32)
    # A third of them subnormal, with any number of leading zeros.
    a[::3] &= np.uint32((1 << fmt.fraction) - 1) >> rng.integers(fmt.fraction, size=200, dtype=np.uint32)
    exact = [rational.root(fmt, int(x)) for x in a]
    got = bench.run(Root(fmt, depth=3), a, rng=rng)
    assert not differences(got, np.array(exact, np.uint32), fmt).size


def test_what_is_no_format_is_refused():
    no_format: Any = "fp32"
    with pytest.raises(ValueError, match="use FP32, BF16, FP16 or FloatFormat"):
        Root(no_format, depth=1)
