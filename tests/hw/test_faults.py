"""Small faults in the logic, one at a time: the tests of the units and of the lanes find each of them."""

from __future__ import annotations

import numpy as np
import pytest

from relay_eps_hw.faults import NONE, Faults
from relay_eps_hw.lane.beat import Operation
from relay_eps_hw.verilog import lanes_verilog
from relay_eps_sim.lanes import SimulatedLanes
from relay_eps_sim.units import SimulatedUnit
from tests.hw.floats.cases import CASES, UnitCase
from tests.hw.lane.workload import beats, mismatches, random_work
from tests.hw.oracle import differences

#: How many faults there must be at least.
FAULTS = 30


#: The cases of one unit together: a fault may show in one format only.
UNITS = {
    name: [case for case in CASES if case.name == name or (case.wire is not None and case.name.startswith(name))]
    for name in [*(case.name for case in CASES if case.wire is None), "widen", "narrow"]
}


def found(sim: SimulatedUnit, case: UnitCase, rng: np.random.Generator, names: list[str]) -> set[str]:
    """Which faults change a result that the case judges; none at all must be none."""
    fixed, random = case.fixed(rng), case.random(rng, 200_000)
    operands = tuple(np.concatenate(pair) for pair in zip(fixed, random, strict=True))
    wanted = case.judge(*operands).bits

    def is_wrong(number: int) -> bool:
        sim.select_fault(number)
        return bool(differences(sim.run(*case.inputs(operands)), wanted, case.fmt).size)

    assert not is_wrong(NONE)
    return {name for number, name in enumerate(names, 1) if is_wrong(number)}


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_the_vectors_of_a_unit_find_each_of_its_faults(rng: np.random.Generator, unit: str):
    faults = Faults()
    with SimulatedUnit(UNITS[unit][0].make(2, faults)) as sim:
        assert faults.names
        seen = set[str]().union(*(found(sim, case, rng, faults.names) for case in UNITS[unit]))
    assert set(faults.names) - seen == set()


@pytest.mark.slow
def test_the_work_of_the_lanes_finds_each_fault(rng: np.random.Generator):
    faults = Faults()
    # Scalars change with almost every beat, tails are poisoned, lengths are random, and every operation is there.
    works = [random_work(rng, int(rng.integers(1, 12)), operation) for operation in [*Operation] * 1500]
    with SimulatedLanes(2, faults=faults, seed=1) as sim:
        sent = beats(rng, works, sim.lanes, sim.places_in, sim.words_in)

        def first_mismatch(number: int) -> str | None:
            sim.select_fault(number)
            got, _ = sim.run(sent, seed=7, idle=0.1, blocked=0.1)
            return next(mismatches(works, got, sim.lanes, sim.places_out), None)

        assert first_mismatch(NONE) is None
        # The units' own vectors find the faults of the units; here are those of what is around them.
        around = [name for name in faults.names if name.startswith(("lane.", "lanes.", "scalars."))]
        assert around
        missed = [name for name in around if first_mismatch(faults.number(name)) is None]
    assert missed == []
    assert len(faults.names) >= FAULTS


def test_the_default_verilog_has_no_faults_in_it():
    before = lanes_verilog(1)
    with_faults = lanes_verilog(1, faults=Faults())
    assert "input [7:0] fault" in with_faults
    assert "fault" not in before
    assert lanes_verilog(1) == before
