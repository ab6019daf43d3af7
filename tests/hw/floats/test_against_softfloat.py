"""Every float unit against Berkeley SoftFloat, under Verilator."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_hw.floats.formats import FP32
from relay_eps_sim.units import SimulatedUnit
from tests.hw.floats.cases import CASES, UnitCase
from tests.hw.oracle import differences

VECTORS = 200_000
SLOW_VECTORS = 20_000_000
CHUNK = 2_000_000

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def check(case: UnitCase, sim: SimulatedUnit, operands: tuple[NDArray, ...], *, stalled: float = 0) -> Counter[str]:
    """Compare all results; what the vectors covered."""
    judged = case.judge(*operands)
    got = sim.run(*case.inputs(operands), stalled=stalled)
    wrong = differences(got, judged.bits, case.fmt)
    if wrong.size:
        first = wrong[0]
        shown = ", ".join(f"{bits[first]:#010x}" for bits in operands)
        pytest.fail(f"{wrong.size} differ, first {case.name}({shown}) = {got[first]:#x}, not {judged.bits[first]:#x}")
    return Counter({kind: int(np.count_nonzero(mask)) for kind, mask in case.kinds(operands, judged).items()})


@each_case
def test_special_values_sweeps_and_random_operands(rng: np.random.Generator, case: UnitCase):
    with SimulatedUnit(case.make(2, None), seed=int(rng.integers(1, 1 << 30))) as sim:
        met = check(case, sim, case.fixed(rng))
        met.update(check(case, sim, case.random(rng, VECTORS)))
    assert [kind for kind, count in met.items() if not count] == []


@each_case
def test_the_deepest_unit_has_the_same_bits_and_holds_them_while_stalled(rng: np.random.Generator, case: UnitCase):
    with SimulatedUnit(case.make(None, None), seed=int(rng.integers(1, 1 << 30))) as sim:
        check(case, sim, case.random(rng, 30_000), stalled=0.3)


@pytest.mark.slow
@each_case
def test_many_random_operands(rng: np.random.Generator, case: UnitCase):
    with SimulatedUnit(case.make(2, None)) as sim:
        for _ in range(SLOW_VECTORS // CHUNK):
            check(case, sim, case.random(rng, CHUNK))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.operands == 1 and case.source == FP32], ids=lambda case: case.name
)
@pytest.mark.parametrize("part", range(4))
def test_every_operand_of_units_that_take_one(case: UnitCase, part: int):
    with SimulatedUnit(case.make(2, None)) as sim:
        for start in range(part << 30, (part + 1) << 30, CHUNK):
            stop = min(start + CHUNK, (part + 1) << 30)
            operands = case.promised(np.arange(start, stop, dtype=np.uint64).astype(np.uint32))
            judged = case.judge(*operands)
            assert not differences(sim.run(*case.inputs(operands)), judged.bits, case.fmt).size, f"from {start:#x}"
