"""Small faults in the core's logic, one at a time: batches, refused ones and disturbed ones find each of them.

The lanes are stand-ins, which compile in a fraction of the time: what is compared is what the core does without a
fault, which `test_core` holds against the golden model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from relay_eps.fpga.batch import sections
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.faults import NONE, Faults
from relay_eps_hw.interface.registers import REGISTERS
from relay_eps_sim.core import Direction, MemoryModel, SimulatedCore
from tests.hw.core.bad_batches import bad_batches
from tests.hw.core.batches import random_batch
from tests.hw.core.bench import ERRORS, carry_out, let_go, of_stand_ins

#: How many faults there must be at least, besides those of the lanes.
FAULTS = 30


class ShortQueues(CoreConfig):
    """A core whose writing queues hold four bursts: they fill, and what is before them has to wait."""

    @property
    def write_rows(self) -> int:
        return 4 * self.burst_beats


CONFIG = ShortQueues(lanes=2, ports=2, beat_bytes=8, burst_beats=16, latency=16, timeout=1 << 10)
#: Of the scenarios: a few faults show in rare moments only, which these have.
SEED = 14
#: Batches without faults end within so many clocks; a fault may leave one waiting for ever.
LIMIT = 60_000
#: Faults that are not the core's own, and those that only a proof can be sure to find: `tests.hw.formal.test_gate`.
LANES = ("lane.", "lanes.", "scalars.", "buffer.")
PROVED = ("gate.",)
DIRECTIONS: tuple[Direction, ...] = ("read", "write")
Scenario = Callable[[SimulatedCore], tuple[object, ...]]


def seen(sim: SimulatedCore, batch, memory: MemoryModel, disturb: Callable[[], None] | None = None):
    """What a host, and one who listens on the buses, could see of a batch; or that it never ends."""
    ports = [memory] * CONFIG.ports
    try:
        sim.clear_log()
        ran = carry_out(sim, batch, np.random.default_rng(1), memory=ports, disturb=disturb, limit=LIMIT)
    except TimeoutError:
        sim.reset()
        let_go(sim)
        return ("no interrupt",)
    counts = tuple(sim.get(f"beats_{what}_{port}") for what in ("read", "written") for port in range(CONFIG.ports))
    control = sim.get("control"), sim.get("interrupt_status"), sim.interrupt
    image = ran.memory.copy()
    at = batch.completion_address - batch.base
    if 0 <= at < len(image) and not at % 64:
        # The clocks of a record differ where nothing is wrong.
        image[at : at + 64 * len(batch.descriptors)].reshape(-1, 64)[:, 0x30:0x34] = 0
    if sim.get("reset"):
        return ("a reset that does not end",)
    try:
        let_go(sim)
    except RuntimeError:
        sim.reset()
        let_go(sim)
        return ("bursts under way after the end",)
    errors = tuple(ran.registers[name] for name in ERRORS)
    return image.tobytes(), errors, tuple(ran.breaches), control, counts, ran.traffic


def scenarios(sim: SimulatedCore, rng: np.random.Generator) -> Iterator[Scenario]:
    """From those that find most to those that find what is left."""
    quick, slow = MemoryModel(latency=5), MemoryModel(latency=60, jitter=20, stall=0.3, shared=True)
    batches = [random_batch(rng, operations=16, longest=300, layers=2) for _ in range(6)]
    for batch in batches:
        for memory in (quick, slow):
            yield partial(seen, batch=batch, memory=memory)
    for _, batch, _ in bad_batches(rng, CONFIG.address_bits):
        yield partial(seen, batch=batch, memory=quick)
    for batch in batches[:2]:
        # Bytes without a strobe are not written, also while the core runs.
        strobeless = partial(sim.write_register, REGISTERS["batch_address"].offset, 0xFFFF_FFC0, 0)
        yield partial(seen, batch=batch, memory=quick, disturb=strobeless)
        for port in range(CONFIG.ports):
            for direction in DIRECTIONS:
                after = int(rng.integers(0, 12))
                mute = partial(sim.mute, port, direction, after)
                yield partial(seen, batch=batch, memory=quick, disturb=mute)
        for descriptor in batch.descriptors[:8]:
            for name in ("m", "v", "wire"):
                address = descriptor.addresses[name]
                for direction in DIRECTIONS:
                    fail = partial(sim.fail, CONFIG.port_of[name], direction, address)
                    yield partial(seen, batch=batch, memory=quick, disturb=fail)

    # Sections long enough to keep a port busy, with an error somewhere within those that are read.
    batch = random_batch(rng, operations=6, longest=6000, layers=3)
    yield partial(seen, batch=batch, memory=MemoryModel(latency=60, shared=True))
    parts = [part for each in batch.descriptors for part in sections(each).items() if part[1].is_read]
    for _ in range(240 if parts else 0):
        name, section = parts[int(rng.integers(len(parts)))]
        fail = partial(sim.fail, CONFIG.port_of[name], "read", section.address + int(rng.integers(section.nbytes)))
        yield partial(seen, batch=batch, memory=MemoryModel(latency=int(rng.integers(1, 30))), disturb=fail)


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="module")
def sim(faults: Faults) -> Iterator[SimulatedCore]:
    with SimulatedCore(CONFIG, of_stand_ins(CONFIG, faults), faults=faults) as core:
        yield core


def test_each_fault_of_the_core_is_found(sim: SimulatedCore, faults: Faults):
    rng = np.random.default_rng(SEED)
    left = {name for name in faults.names if not name.startswith((*LANES, *PROVED))}
    total = len(left)
    for scenario in scenarios(sim, rng):
        sim.select_fault(NONE)
        sim.reset()
        right = scenario(sim)
        sim.reset()
        assert scenario(sim) == right, "without a fault a scenario is the same each time"
        for name in sorted(left):
            sim.select_fault(faults.number(name))
            sim.reset()
            if scenario(sim) != right:
                left.discard(name)
        if not left:
            break
    sim.select_fault(NONE)
    assert left == set()
    assert total >= FAULTS
