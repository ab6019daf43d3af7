"""The whole core against the golden model: bit for bit, whatever the memory does, and with every fault answered for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from relay_eps.fpga import interface
from relay_eps.fpga.batch import Descriptor, encode
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface.codes import Fault, Opcode
from relay_eps_sim.core import MemoryModel, SimulatedCore
from tests.hw.core.batches import bad_batches, coverage, random_batch
from tests.hw.core.bench import DISTURBANCES, SMALL, let_go, simulated, wrong_when, wrong_with

#: Of all arrangements and lane counts, beats narrower and wider than rows, short and long bursts, few address bits.
SHAPES = (
    CoreConfig(1, 1, 8, timeout=1 << 14),
    CoreConfig(1, 4, 64, burst_beats=64, timeout=1 << 14),
    CoreConfig(4, 5, 16, burst_beats=4, address_bits=40, timeout=1 << 14),
    CoreConfig(8, 2, 32, burst_beats=1, timeout=1 << 14),
    CoreConfig(16, 4, 64, address_bits=32, latency=16, timeout=1 << 14),
)


@pytest.fixture(scope="module")
def sim() -> Iterator[SimulatedCore]:
    with simulated(SMALL, np.random.default_rng(1)) as core:
        yield core


def test_random_batches_have_the_golden_models_bits_and_touch_nothing_else(
    sim: SimulatedCore, rng: np.random.Generator
):
    for _ in range(30):
        assert wrong_with(sim, random_batch(rng, ragged=0.2), rng) == []


def test_each_check_of_a_descriptor_refuses_it_and_finishes_those_before(sim: SimulatedCore, rng: np.random.Generator):
    for name, batch, _ in bad_batches(rng, SMALL.address_bits):
        assert wrong_with(sim, batch, rng) == [], name


@pytest.mark.parametrize("disturbance", dict.fromkeys(DISTURBANCES), ids=lambda each: each.__name__)
def test_whatever_goes_wrong_is_recorded_and_the_next_batch_runs(
    sim: SimulatedCore, rng: np.random.Generator, disturbance
):
    for _ in range(15):
        assert wrong_when(sim, rng, disturbance) == []


def test_a_record_that_cannot_be_written_after_another_error_ends_the_batch_too(
    sim: SimulatedCore, rng: np.random.Generator
):
    fill = Descriptor(interface.Opcode.FILL, 64, addresses={"wire": 0x1000})
    memory = np.zeros(0x2000, np.uint8)
    memory[:128] = encode([fill]).ravel()
    sim.attach(0, memory)
    sim.configure(MemoryModel(latency=5))
    sim.fail(0, "write", 0x1000)
    sim.fail(0, "write", 0x400)
    sim.start(0, 1, 0x400)
    sim.finish(50_000)
    assert sim.get("error") & 0xFF == Fault.WRITE_RESPONSE
    let_go(sim)
    assert wrong_with(sim, random_batch(rng), rng) == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("config", SHAPES, ids=str)
def test_every_shape_of_core_has_the_same_bits(rng: np.random.Generator, config: CoreConfig):
    with simulated(config, rng) as sim:
        for _ in range(60):
            batch = random_batch(rng, ragged=0.2, operations=20, address_bits=config.address_bits)
            assert wrong_with(sim, batch, rng) == []
        for name, batch, _ in bad_batches(rng, config.address_bits):
            assert wrong_with(sim, batch, rng) == [], name
        for disturbance in DISTURBANCES * 8:
            assert wrong_when(sim, rng, disturbance) == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_million_elements_and_ten_thousand_operations(sim: SimulatedCore, rng: np.random.Generator):
    elements = operations = 0
    seen: set[tuple[str, str, str, str]] = set()
    while elements < 2_000_000 or operations < 10_000:
        longest = 40_000 if rng.random() < 0.05 else 1500
        batch = random_batch(rng, layers=5, operations=60, longest=longest, ragged=0.1)
        elements += sum(descriptor.length for descriptor in batch.descriptors)
        operations += batch.count
        seen |= set(coverage(batch))
        assert wrong_with(sim, batch, rng) == []
    print(f"{elements} elements in {operations} operations, {len(seen)} combinations")
    done = {opcode.name for opcode in Opcode} - {"BARRIER"}
    for column in (2, 3):
        kinds = {key[column] for key in seen}
        missed = set(product(done, kinds)) - {(key[0], key[column]) for key in seen}
        assert missed == set()
