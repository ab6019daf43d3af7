"""Narrowing against numpy and ml_dtypes: every 16-bit value, every tie between two, and what breaks a tie."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_hw.floats.narrow import Narrow
from relay_eps_hw.floats.wire import WireFormat
from relay_eps_sim.units import SimulatedUnit
from tests.hw.floats.sixteen import SIXTEEN, edges_of_fp32, narrowed, narrowing_edges
from tests.hw.oracle import differences, is_nan

DEPTHS = (1, 5)


@pytest.fixture(scope="module", params=DEPTHS, ids=lambda depth: f"depth-{depth}")
def compiled(request: pytest.FixtureRequest) -> Iterator[SimulatedUnit]:
    with SimulatedUnit(Narrow(depth=request.param)) as unit:
        yield unit


def wrong(unit: SimulatedUnit, a: NDArray[np.uint32], wire: WireFormat) -> list[str]:
    """The operands whose result is not the oracle's, with both results."""
    got = unit.run(a, np.full_like(a, wire))
    want = narrowed(a, wire)
    return [f"{a[k]:#x}: {got[k]:#x}, not {want[k]:#x}" for k in differences(got, want, wire.format)[:10]]


@pytest.mark.parametrize("wire", SIXTEEN, ids=lambda wire: wire.name)
def test_every_value_every_tie_and_every_broken_tie_round_to_nearest_even(compiled: SimulatedUnit, wire: WireFormat):
    edges = narrowing_edges(wire)
    assert len(edges) > 12 * (1 << 16), "ties with each of at least 12 bits below them"
    assert not wrong(compiled, edges, wire)


@pytest.mark.parametrize("wire", SIXTEEN, ids=lambda wire: wire.name)
def test_random_patterns_and_exponents_near_the_format_round_to_nearest_even(
    compiled: SimulatedUnit, rng: np.random.Generator, wire: WireFormat
):
    anything = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    near = anything & np.uint32(0x807F_FFFF) | rng.integers(98, 146, len(anything), dtype=np.uint32) << np.uint32(23)
    assert not wrong(compiled, np.concatenate([edges_of_fp32(), anything, near]), wire)


@pytest.mark.parametrize("wire", SIXTEEN, ids=lambda wire: wire.name)
def test_a_nan_stays_a_nan_wherever_its_payload_lies(compiled: SimulatedUnit, wire: WireFormat):
    payloads = np.concatenate([np.uint32(1) << np.arange(23, dtype=np.uint32), np.array([0x7F_FFFF], np.uint32)])
    nans = np.concatenate([payloads | np.uint32(0x7F80_0000), payloads | np.uint32(0xFF80_0000)])
    assert np.all(is_nan(compiled.run(nans, np.full_like(nans, wire)), wire.format))


def test_fp32_passes(compiled: SimulatedUnit, rng: np.random.Generator):
    a = np.concatenate([edges_of_fp32(), rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)])
    assert np.array_equal(compiled.run(a, np.full_like(a, WireFormat.FP32)), a)


def test_the_format_may_change_with_every_element_and_the_stall_loses_none(
    compiled: SimulatedUnit, rng: np.random.Generator
):
    a = rng.integers(0, 1 << 32, 50_000, dtype=np.uint32)
    formats = rng.integers(0, 3, len(a), dtype=np.uint32)
    got = compiled.run(a, formats, stalled=0.3, seed=int(rng.integers(1 << 31)))
    for wire in WireFormat:
        chosen = formats == wire
        assert not differences(got[chosen], narrowed(a[chosen], wire), wire.format).size


@pytest.mark.parametrize("depth", [0, -1, 6, True, 1.0, "2"])
def test_other_depths_are_refused_with_the_allowed_ones(depth: object):
    with pytest.raises(ValueError, match="use 1 to 5"):
        Narrow(depth=depth)  # type: ignore[arg-type]
