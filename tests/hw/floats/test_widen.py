"""Widening against numpy and ml_dtypes, over every 16-bit pattern."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_hw.floats.widen import Widen
from relay_eps_hw.floats.wire import WireFormat
from relay_eps_sim.units import SimulatedUnit
from tests.hw.floats.sixteen import SIXTEEN, all_values, edges_of_fp32, widened
from tests.hw.oracle import differences

DEPTHS = (1, 3)


@pytest.fixture(scope="module", params=DEPTHS, ids=lambda depth: f"depth-{depth}")
def compiled(request: pytest.FixtureRequest) -> Iterator[SimulatedUnit]:
    with SimulatedUnit(Widen(depth=request.param)) as unit:
        yield unit


def wrong(unit: SimulatedUnit, a: NDArray[np.uint32], wire: WireFormat) -> list[str]:
    """The operands whose result is not the oracle's, with both results."""
    got = unit.run(a, np.full_like(a, wire))
    want = widened(a, wire)
    return [f"{a[k]:#x}: {got[k]:#x}, not {want[k]:#x}" for k in differences(got, want)[:10]]


@pytest.mark.parametrize("wire", SIXTEEN, ids=lambda wire: wire.name)
def test_every_16_bit_value_is_widened_exactly_whatever_lies_above_it(
    compiled: SimulatedUnit, rng: np.random.Generator, wire: WireFormat
):
    above = rng.integers(0, 1 << 16, 1 << 16, dtype=np.uint32) << np.uint32(16)
    assert not wrong(compiled, all_values() | above, wire)


def test_fp32_passes(compiled: SimulatedUnit, rng: np.random.Generator):
    a = np.concatenate([edges_of_fp32(), rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)])
    got = compiled.run(a, np.full_like(a, WireFormat.FP32))
    assert np.array_equal(got, a)


def test_the_format_may_change_with_every_element_and_the_stall_loses_none(
    compiled: SimulatedUnit, rng: np.random.Generator
):
    a = rng.integers(0, 1 << 32, 50_000, dtype=np.uint32)
    formats = rng.integers(0, 3, len(a), dtype=np.uint32)
    got = compiled.run(a, formats, stalled=0.3, seed=int(rng.integers(1 << 31)))
    for wire in WireFormat:
        chosen = formats == wire
        assert not differences(got[chosen], widened(a[chosen], wire)).size


@pytest.mark.parametrize("depth", [0, -1, 4, True, 1.0, "2"])
def test_other_depths_are_refused_with_the_allowed_ones(depth: object):
    with pytest.raises(ValueError, match="use 1 to 3"):
        Widen(depth=depth)  # type: ignore[arg-type]
