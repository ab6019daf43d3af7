"""The whole core in the compiled harness: batches run through it, and what is wrong with what came of them."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relay_eps.fpga.batch import sections
from relay_eps.fpga.interface import Fault
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.top import Top, core_verilog
from relay_eps_hw.faults import Faults
from relay_eps_hw.interface.descriptors import SOURCES
from relay_eps_hw.interface.vendor import KERNEL
from relay_eps_hw.lane.timing import SHALLOW
from relay_eps_hw.verilog import module
from relay_eps_sim.core import Direction, MemoryModel, SimulatedCore
from tests.hw.core.batches import Batch, Rng, random_batch
from tests.hw.core.covered import Strike, strike
from tests.hw.core.outcome import Trouble, check_fault_outcome, check_outcome
from tests.hw.core.reference import Expected
from tests.hw.core.reference import run as expect
from tests.hw.lane.stand_in import StandInLane

#: The one that the short tests share: it is compiled once.
SMALL = CoreConfig(lanes=2, ports=2, beat_bytes=8, timeout=1 << 14)
#: Clocks after which a batch of the sizes here has surely ended.
LIMIT = 4_000_000
ERRORS = ("error", "error_number", "error_address")


def simulated(config: CoreConfig, rng: Rng) -> SimulatedCore:
    """A core of this configuration, with shallow lanes."""
    return SimulatedCore(config, core_verilog(config, depths=SHALLOW), seed=int(rng.integers(1, 1 << 31)))


def of_stand_ins(config: CoreConfig, faults: Faults | None = None) -> str:
    """The Verilog of a core of this configuration, with stand-ins for lanes: it compiles in a fraction of the time."""
    return module(Top(config, StandInLane, faults=faults), KERNEL, faults)


def random_memory(rng: Rng, ports: int) -> list[MemoryModel]:
    """A memory for each port: fast and slow ones, some that stall, some with one budget for reads and writes."""
    return [
        MemoryModel(
            latency=int(rng.integers(1, 200)),
            jitter=int(rng.integers(0, 30)),
            stall=float(rng.choice([0, 0, 0.3, 0.7])),
            shared=bool(rng.integers(2)),
            outstanding=int(rng.choice([1, 4, 64])),
        )
        for _ in range(ports)
    ]


@dataclass(frozen=True)
class Ran:
    """What came of a batch.

    Attributes:
        memory: the whole image.
        registers: the error registers.
        clocks: from its start to the interrupt.
        breaches: of the bus's protocol, and accesses where no memory is.
        traffic: the bursts in their order: port, whether it is a write, address and beats.
    """

    memory: NDArray[np.uint8]
    registers: dict[str, int]
    clocks: int
    breaches: list[str]
    traffic: tuple[tuple[int, bool, int, int], ...]


def carry_out(
    sim: SimulatedCore,
    batch: Batch,
    rng: Rng,
    *,
    memory: list[MemoryModel] | None = None,
    disturb: Callable[[], None] | None = None,
    limit: int = LIMIT,
) -> Ran:
    """Run a batch; ``disturb`` is called once it has been started. TimeoutError where no interrupt comes."""
    image = batch.memory.copy()
    sim.attach(batch.base, image)
    sim.configure(
        random_memory(rng, sim.config.ports) if memory is None else memory, seed=int(rng.integers(1, 1 << 30))
    )
    known, strayed = len(sim.violations), len(sim.stray)
    sim.start(batch.batch_address, batch.count, batch.completion_address)
    if disturb is not None:
        disturb()
    clocks = sim.finish(limit)
    registers = {name: sim.get(name) for name in ERRORS}
    breaches = sim.violations[known:] + [f"{each} is no memory" for each in sim.stray[strayed:]]
    log = sim.bursts()
    traffic = tuple(zip(*(log[name].tolist() for name in ("port", "is_write", "address", "beats")), strict=True))
    sim.clear_log()
    return Ran(image.copy(), registers, clocks, breaches, traffic)


def let_go(sim: SimulatedCore) -> None:
    """Take the memory away once nothing is under way."""
    sim.heal()
    sim.configure(MemoryModel())
    sim.clock(2000)
    sim.detach()


def wrong_with(sim: SimulatedCore, batch: Batch, rng: Rng, *, limit: int = LIMIT) -> list[str]:
    """Run a batch in a random memory; what is wrong with what came of it, in words."""
    ran = carry_out(sim, batch, rng, limit=limit)
    let_go(sim)
    return ran.breaches + check_outcome(batch, expect(batch, sim.config), ran.memory, ran.registers)


@dataclass(frozen=True)
class Disturbance:
    """Something that goes wrong while a batch runs.

    Attributes:
        name: in words.
        act: makes it happen.
        trouble: what must come of it.
    """

    name: str
    act: Callable[[], None]
    trouble: Trouble


Make = Callable[[SimulatedCore, Batch, Rng], Disturbance]
_Place = tuple[Fault, str, int]


def error_response(
    sim: SimulatedCore, batch: Batch, rng: Rng, *, wanted: Container[Strike] = frozenset()
) -> Disturbance:
    """A slave that answers a read or a write of some section with an error; it strikes a ``wanted`` one if it can."""
    places: list[_Place] = []
    first: dict[tuple[Fault, int, int], tuple[Strike, _Place]] = {}
    for descriptor in batch.descriptors:
        for name, section in sections(descriptor).items():
            uses = {Fault.READ_RESPONSE: section.is_read, Fault.WRITE_RESPONSE: section.is_written}
            for fault in (fault for fault, has in uses.items() if has):
                places.append((fault, name, section.address + int(rng.integers(section.nbytes))))
                # Of the operations that use a section so, it is mostly the first one that meets the error.
                key = (fault, sim.config.port_of[name], section.address)
                first.setdefault(key, (strike(fault, name, descriptor.opcode), places[-1]))
    aims = [place for struck, place in first.values() if struck in wanted]
    choice = aims or places
    fault, name, address = choice[int(rng.integers(len(choice)))]
    port = sim.config.port_of[name]
    direction: Direction = "write" if fault is Fault.WRITE_RESPONSE else "read"

    def act() -> None:
        sim.fail(port, direction, address)

    return Disturbance(f"{direction} error of {name} at {address:#x}", act, Trouble(fault, name, address))


def bad_descriptor_read(sim: SimulatedCore, batch: Batch, rng: Rng) -> Disturbance:
    """A slave that answers the read of a descriptor with an error."""
    number = int(rng.integers(batch.count))
    address = batch.batch_address + 128 * number + 64 * int(rng.integers(2))
    trouble = Trouble(Fault.READ_RESPONSE, "descriptors", address, number)
    return Disturbance(f"read error of descriptor {number}", lambda: sim.fail(0, "read", address), trouble)


def reset_in_between(sim: SimulatedCore, batch: Batch, rng: Rng) -> Disturbance:
    """The host's soft reset, some time after the start."""
    clocks = int(rng.integers(0, 4000))

    def act() -> None:
        sim.clock(clocks)
        if not sim.interrupt:
            sim.set("reset", 1)

    return Disturbance(f"reset after {clocks} clocks", act, Trouble(Fault.RESET))


def silence(sim: SimulatedCore, batch: Batch, rng: Rng) -> Disturbance:
    """A slave that answers no more, or takes no more addresses, in one direction of a port."""
    port = int(rng.integers(sim.config.ports))
    direction: Direction = "write" if rng.integers(2) else "read"
    after, addresses = int(rng.integers(0, 6)), bool(rng.integers(2))

    def act() -> None:
        sim.mute(port, direction, after, addresses=addresses)

    streams = [name for name, of in sim.config.port_of.items() if of == port]
    name = f"port {port} does not {'accept' if addresses else 'answer'} a {direction} after {after}"
    return Disturbance(name, act, Trouble(Fault.TIMEOUT, streams[0]))


DISTURBANCES = (error_response, error_response, bad_descriptor_read, reset_in_between, silence)


@dataclass(frozen=True)
class Disturbed:
    """What came of a batch that was disturbed.

    Attributes:
        wrong: what is wrong with that, in words.
        struck: the fault and the operation that had it; None where it came too late, or something is wrong.
    """

    wrong: list[str]
    struck: Strike | None


def disturbed(sim: SimulatedCore, rng: Rng, make: Make, operations: int = 10) -> Disturbed:
    """Run a random batch, disturbed. A second batch must then run as ever."""
    batch = random_batch(rng, operations=operations, longest=1200, address_bits=sim.config.address_bits)
    expected = expect(batch, sim.config)
    what = make(sim, batch, rng)
    memory = [MemoryModel(latency=int(rng.integers(1, 150)), jitter=int(rng.integers(0, 30)))] * sim.config.ports
    ran = carry_out(sim, batch, rng, memory=memory, disturb=what.act)
    wrong = ran.breaches + _outcome_of(batch, expected, ran, what.trouble, sim.config)
    let_go(sim)
    after = random_batch(rng, operations=3, longest=100, address_bits=sim.config.address_bits)
    wrong += [f"afterwards: {text}" for text in wrong_with(sim, after, rng)]
    fault, source = _met(ran)
    number, struck = ran.registers["error_number"], None
    # A reset may come after the last record.
    if fault and not wrong and number < batch.count:
        struck = strike(Fault(fault), source, batch.descriptors[number].opcode)
    return Disturbed([f"{what.name}: {text}" for text in wrong], struck)


def wrong_when(sim: SimulatedCore, rng: Rng, make: Make) -> list[str]:
    """What is wrong with what came of a random batch that was `disturbed`."""
    return disturbed(sim, rng, make).wrong


def _met(ran: Ran) -> tuple[int, str]:
    """The fault that the registers have, and what met it."""
    return ran.registers["error"] & 0xFF, SOURCES[ran.registers["error"] >> 8 & 7]


def _outcome_of(batch: Batch, expected: Expected, ran: Ran, trouble: Trouble, config: CoreConfig) -> list[str]:
    fault, source = _met(ran)
    if not fault and trouble.fault in (Fault.RESET, Fault.TIMEOUT):
        # It came too late to matter.
        return check_outcome(batch, expected, ran.memory, ran.registers)
    if trouble.stream in config.port_of:
        # Another stream of the port may have come to the same place first, and any may find the port dead.
        ports = {**config.port_of, "descriptors": 0, "records": 0}
        assert trouble.stream is not None
        if ports[source] == ports[trouble.stream]:
            trouble = replace(trouble, stream=source)
    records_written = source != "records" and not (trouble.fault == Fault.TIMEOUT and ran.registers["error"] >> 16 & 1)
    return check_fault_outcome(batch, expected, ran.memory, trouble, ran.registers, records_written=records_written)
