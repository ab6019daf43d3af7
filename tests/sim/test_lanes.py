"""The generated Verilog of the lanes against the golden model, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from relay_eps_hw.lane.beat import SCALARS, Operation
from relay_eps_hw.lane.timing import DEEP, SHALLOW
from relay_eps_sim.lanes import SimulatedLanes
from relay_eps_sim.packing import unpack
from tests.hw.lane.workload import Work, beats, mismatches, random_work


def works_of(rng: np.random.Generator, elements: int, longest: int) -> list[Work]:
    """Random operations on about so many elements in all; half of them short, so that scalars change often."""
    works: list[Work] = []
    left = elements
    while left > 0:
        length = int(rng.integers(1, 5)) if rng.random() < 0.5 else int(rng.integers(1, longest))
        works.append(random_work(rng, length))
        left -= length
    return works


def check(sim: SimulatedLanes, rng: np.random.Generator, works: list[Work], *, idle: float = 0, blocked: float = 0):
    sent = beats(rng, works, sim.lanes, sim.places_in, sim.words_in)
    got, _ = sim.run(sent, seed=int(rng.integers(1, 1 << 30)), idle=idle, blocked=blocked)
    assert list(mismatches(works, got, sim.lanes, sim.places_out)) == []


@pytest.mark.parametrize("lanes", [1, 2])
def test_shallow_lanes_have_the_golden_models_bits(rng: np.random.Generator, lanes: int):
    with SimulatedLanes(lanes, depths=SHALLOW, seed=int(rng.integers(1, 1 << 30))) as sim:
        check(sim, rng, works_of(rng, 60_000, 400))
        check(sim, rng, works_of(rng, 20_000, 60), idle=0.3)
        check(sim, rng, works_of(rng, 20_000, 60), blocked=0.5)
        check(sim, rng, works_of(rng, 20_000, 60), idle=0.4, blocked=0.4)


def test_a_deep_lane_has_the_same_bits(rng: np.random.Generator):
    with SimulatedLanes(1, depths=DEEP, seed=int(rng.integers(1, 1 << 30))) as sim:
        check(sim, rng, works_of(rng, 30_000, 100))
        check(sim, rng, works_of(rng, 10_000, 30), idle=0.2, blocked=0.3)


@pytest.mark.parametrize("operation", Operation)
def test_each_operation_alone(rng: np.random.Generator, operation: Operation):
    with SimulatedLanes(2, depths=SHALLOW, seed=1) as sim:
        check(sim, rng, [random_work(rng, length, operation) for length in (1, 2, 3, 4, 5, 63, 64, 65, 1000)])


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_every_lane_count_and_depth(rng: np.random.Generator, lanes: int):
    for depths in (SHALLOW, DEEP):
        with SimulatedLanes(lanes, depths=depths, seed=int(rng.integers(1, 1 << 30))) as sim:
            for idle, blocked in ((0, 0), (0.3, 0), (0, 0.5), (0.3, 0.3)):
                check(sim, rng, works_of(rng, 200_000, 1000), idle=idle, blocked=blocked)


def test_a_scalar_outside_the_contract_is_flagged_until_its_operation_ends(rng: np.random.Generator):
    works = [random_work(rng, 6, Operation.FOLD_APPLY) for _ in range(3)]
    with SimulatedLanes(1, seed=1) as sim:
        sent = beats(rng, works, 1, sim.places_in, sim.words_in)
        offset, _ = sim.places_in["scalars." + str(rng.choice(SCALARS))]
        # Infinity in one beat of the second operation.
        word = np.zeros(sim.words_in + 1, np.uint64)
        word[offset // 32] = (0x7F80_0000 << (offset % 32)) & 0xFFFF_FFFF
        word[offset // 32 + 1] = 0x7F80_0000 >> (32 - offset % 32)
        sent[8] |= word[: sim.words_in].astype(np.uint32)
        got, _ = sim.run(sent)
    assert unpack(sim.places_out, "outside", got).tolist() == [0] * 8 + [1] * 4 + [0] * 6


def test_lanes_that_stopped_answering_are_closed_with_the_beats_they_hold(monkeypatch: pytest.MonkeyPatch):
    sim = SimulatedLanes(1)
    beats = np.zeros((3, sim.words_in), np.uint32)
    monkeypatch.setattr(sim.library, "lanes_run", lambda *arguments: 0)
    with pytest.raises(RuntimeError, match="did not give back 3 beats"):
        sim.run(beats)
    with pytest.raises(RuntimeError, match="was closed: make a new one"):
        sim.run(beats)


@pytest.mark.parametrize("value", [1, -0.1, float("nan")])
def test_probabilities_with_which_a_run_would_not_end_are_refused(value: float):
    with SimulatedLanes(1) as sim:
        beats = np.zeros((3, sim.words_in), np.uint32)
        with pytest.raises(ValueError, match=r"idle = .* use a probability from 0 to 0\.99"):
            sim.run(beats, idle=value)
        with pytest.raises(ValueError, match=r"blocked = .* use a probability from 0 to 0\.99"):
            sim.run(beats, blocked=value)


def test_payloads_of_another_width_are_refused():
    with SimulatedLanes(1) as sim, pytest.raises(ValueError, match="payloads are beats of"):
        sim.run(np.zeros((3, 2), np.uint32))
