"""Division: at every depth, near exact quotients, and in odd formats.

That the results are SoftFloat's, and right for all operands of small formats, is tested for all units together; the
remainder of each digit is proved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_hw.floats.divide import Divide
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_sim.units import SimulatedUnit
from tests.hw import rational
from tests.hw.floats import bench
from tests.hw.operands import near_exact_quotients, random_pairs, special_pairs
from tests.hw.oracle import differences, is_nan

Bits = NDArray[np.uint32]


def not_negative(bits: Bits) -> Bits:
    """Such as a positive divisor may be: no sign but on NaNs."""
    return np.where(is_nan(bits), bits, bits & np.uint32(FP32.negative_zero - 1))


def wrong(got: Bits, a: Bits, b: Bits) -> list[str]:
    """The operands of the first results that are not numpy's, which are rounded to nearest even."""
    with np.errstate(all="ignore"):
        expected = (a.view(np.float32) / b.view(np.float32)).view(np.uint32)
    places = differences(got, expected)
    return [f"{a[k]:#010x} / {b[k]:#010x} = {got[k]:#010x}, not {expected[k]:#010x}" for k in places[:5]]


def mixture(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    """Special values, nearly exact quotients and random operands, a third of each."""
    a, b = special_pairs()
    chosen = rng.integers(len(a), size=count // 3)
    parts = [(a[chosen], b[chosen]), near_exact_quotients(rng, count // 3), random_pairs(rng, count // 3)]
    dividends, divisors = zip(*parts, strict=True)
    return np.concatenate(dividends), np.concatenate(divisors)


@pytest.mark.parametrize("positive_divisor", [False, True])
def test_no_depth_changes_a_bit_and_no_stall_loses_one(rng: np.random.Generator, positive_divisor: bool):
    for depth in range(1 + positive_divisor, Divide().steps + 1, 2):
        a, b = mixture(rng, 60)
        b = not_negative(b) if positive_divisor else b
        unit = Divide(depth=depth, positive_divisor=positive_divisor)
        assert unit.latency == depth
        assert not wrong(bench.run(unit, a, b, stalled=0.3, rng=rng), a, b), f"depth {depth}"


def test_specials_nearly_exact_and_random_quotients_are_numpys(rng: np.random.Generator):
    parts = [special_pairs(), near_exact_quotients(rng, 20_000), random_pairs(rng, 20_000)]
    a, b = (np.concatenate(side) for side in zip(*parts, strict=True))
    with SimulatedUnit(Divide(depth=2)) as compiled:
        assert not wrong(compiled.run(a, b, stalled=0.3), a, b)
    b = not_negative(b)
    with SimulatedUnit(Divide(depth=2, positive_divisor=True)) as compiled:
        assert not wrong(compiled.run(a, b), a, b)


def test_a_quotient_half_way_between_two_subnormals_is_rounded_to_the_even_one(rng: np.random.Generator):
    odd = rng.integers(1 << 22, size=60, dtype=np.uint32) << np.uint32(1) | np.uint32(1)
    two = np.full_like(odd, FP32.one + (1 << FP32.fraction))
    got = bench.run(Divide(depth=2), odd, two, rng=rng)
    assert np.array_equal(got, (odd >> 1) + (odd >> 1 & 1))


@pytest.mark.parametrize(
    "fmt", [FloatFormat(3, 2), FloatFormat(3, 12), FloatFormat(4, 23), FloatFormat(11, 4)], ids=str
)
def test_formats_with_much_more_of_one_field_than_of_the_other(rng: np.random.Generator, fmt: FloatFormat):
    a, b = (rng.integers(1 << fmt.width, size=300, dtype=np.uint32) for _ in range(2))
    # Half of the divisors are subnormal, with any number of leading zeros: the largest quotients are among them.
    b[::2] &= np.uint32((1 << fmt.fraction) - 1) >> rng.integers(fmt.fraction, size=150, dtype=np.uint32)
    exact = [rational.divide(fmt, int(x), int(y)) for x, y in zip(a, b, strict=True)]
    got = bench.run(Divide(fmt, depth=3), a, b, rng=rng)
    assert not differences(got, np.array(exact, np.uint32), fmt).size


def test_what_is_no_format_is_refused():
    no_format: Any = "fp32"
    with pytest.raises(ValueError, match="use FP32, BF16, FP16 or FloatFormat"):
        Divide(no_format, depth=1)
