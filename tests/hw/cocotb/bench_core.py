"""cocotb benches of the whole core among cocotbext-axi's models: its registers, a batch bit for bit, slaves' errors."""

from __future__ import annotations

import random
from dataclasses import replace

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge, with_timeout
from cocotb.utils import get_sim_time

from relay_eps.fpga.batch import sections
from relay_eps.fpga.interface import Fault
from relay_eps_hw.core.core import constants
from relay_eps_hw.interface.descriptors import SOURCES
from relay_eps_hw.interface.registers import SPACE, Access, registers
from tests.hw.cocotb.axi import Memory, Registers, Watch, serve
from tests.hw.cocotb.benches import CORE, SEED, Said, say
from tests.hw.core.batches import Batch, random_batch
from tests.hw.core.outcome import Trouble, check_fault_outcome, check_outcome
from tests.hw.core.reference import run as expect

PERIOD = 10
#: Clocks after which a batch of the sizes here has surely ended.
LIMIT = 100_000
ERRORS = ("error", "error_number", "error_address")
#: What a batch here must use, so that each channel of each port has something to carry.
USES = {*((name, "read") for name in "gmvp"), *((name, "write") for name in ("m", "v", "p", "wire"))}
#: Done, idle, and ready for the next; and the same when it was read before.
DONE, IDLE = 0b1110, 0b1100


async def begin(dut, dice: random.Random) -> Registers:
    """The clock, a reset, and the registers."""
    cocotb.start_soon(Clock(dut.ap_clk, PERIOD, "ns").start())
    dut.ap_rst_n.value = 0
    given = Registers(dut, dice)
    await ClockCycles(dut.ap_clk, 3)
    await FallingEdge(dut.ap_clk)
    dut.ap_rst_n.value = 1
    return given


async def carry_out(dut, given: Registers, batch: Batch) -> tuple[dict[str, int], int]:
    """Run a batch in the memory that is there; the error registers, and the clocks that it took."""
    for name in ("batch_address", "count", "completion_address"):
        await given.set(name, getattr(batch, name))
    await given.set("interrupt_mask", 1)
    await given.set("interrupt_enable", 1)
    begun = get_sim_time("ns")
    await given.set("control", 1)
    if not int(dut.interrupt.value):
        await with_timeout(RisingEdge(dut.interrupt), LIMIT * PERIOD, "ns")
    clocks = round((get_sim_time("ns") - begun) / PERIOD)
    await given.set("interrupt_status", await given.get("interrupt_status"))
    assert not int(dut.interrupt.value)
    assert [await given.get("control"), await given.get("control")] == [DONE, IDLE]
    return {name: await given.get(name) for name in ERRORS}, clocks


def uses(batch: Batch) -> list[tuple[str, str, int]]:
    """What each descriptor reads and writes: the stream, the direction, and an address that lies in it."""
    return [
        (name, direction, section.address + section.nbytes // 2)
        for descriptor in batch.descriptors
        for name, section in sections(descriptor).items()
        for direction, has in (("read", section.is_read), ("write", section.is_written))
        if has
    ]


def written(batch: Batch) -> int:
    """How many elements and words it writes."""
    lengths = ((descriptor.length, sections(descriptor)) for descriptor in batch.descriptors)
    return sum(length for length, parts in lengths for part in parts.values() if part.is_written)


def any_batch(rng: np.random.Generator, operations: int) -> Batch:
    """A short one, of all streams."""
    while True:
        bits = CORE.address_bits
        batch = random_batch(rng, layers=2, operations=operations, longest=100, address_bits=bits, ragged=0.2)
        if {(name, direction) for name, direction, _ in uses(batch)} >= USES:
            return batch


@cocotb.test()
async def registers_by_words_and_by_bytes(dut):
    """Each register reads as it must, arguments keep what is written to their bytes, and all else reads as 0."""
    dice = random.Random(SEED)
    given = await begin(dut, dice)
    known = bytearray(SPACE)
    for name, value in {**constants(CORE), "control": IDLE}.items():
        known[given.place(name)] = value.to_bytes(len(known[given.place(name)]), "little")
    places = {register.name: given.place(register.name) for access in Access for register in registers(access)}
    arguments = {register.name for register in registers(Access.ARGUMENT)}
    first = places["batch_address"].start
    met: set[tuple[str, str]] = set()
    begun = get_sim_time("ns")

    async def look(start: int, size: int) -> None:
        assert await given.read(start, size) == known[start : start + size], f"from {start:#x}"
        met.update(("read", name) for name, at in places.items() if start <= at.start and at.stop <= start + size)

    await look(0, SPACE)
    for name in [*arguments, *dice.choices([*arguments], k=60)]:
        # Some bytes of an argument, and perhaps of what is next to it, while others are read.
        start = dice.randrange(places[name].start, places[name].stop)
        data = dice.randbytes(dice.randint(1, 12))
        reading = cocotb.start_soon(look(dice.randrange(0x100, 0x180, 4), 16))
        await given.write(start, data)
        await reading
        for at, byte in enumerate(data, start):
            if any(at in range(place.start, place.stop) for place in map(places.__getitem__, arguments)):
                known[at] = byte
                met.add(("written", name))
        await look(first + 4 * dice.randrange(8), 32)
    for name in ("identity", "limits", "error_address", "clocks_busy"):
        await given.write(places[name].start, dice.randbytes(4))
    await given.write(SPACE - 8, dice.randbytes(8))
    await look(0, SPACE)

    # One that it refuses before it looks at any memory.
    batch = replace(any_batch(np.random.default_rng(SEED), 3), count=1 << 31)
    found, _ = await carry_out(dut, given, batch)
    assert found["error"] == Fault.LENGTH | SOURCES.index("descriptors") << 8
    await given.set("reset", 1)
    while await given.get("reset"):
        pass
    clocks = round((get_sim_time("ns") - begun) / PERIOD)
    kinds = len(places) + len(arguments)
    say(Said("registers_by_words_and_by_bytes", SPACE // 4, clocks, met=len(met), kinds=kinds))


@cocotb.test()
async def a_random_batch_bit_for_bit(dut):
    """All of the memory, the records and the registers are as they must be, whenever the slaves rest."""
    rng, dice = np.random.default_rng(SEED), random.Random(SEED)
    batch = any_batch(rng, 8)
    given = await begin(dut, dice)
    memory = Memory(batch.base, batch.memory.copy())
    for port in range(CORE.ports):
        serve(dut, port, memory, dice)
    watch = Watch(dut, CORE.ports)
    cocotb.start_soon(watch.run())
    found, clocks = await carry_out(dut, given, batch)
    wrong = check_outcome(batch, expect(batch, CORE), memory.image, found) + memory.strays + watch.breaches
    elements = written(batch)
    say(Said("a_random_batch_bit_for_bit", elements, clocks, met=len(watch.met), kinds=len(watch.kinds())))
    assert wrong == []


@cocotb.test()
async def slaves_that_answer_with_errors(dut):
    """A read and then a write that fail are recorded, what was done stands, and the batch after each is as ever."""
    rng, dice = np.random.default_rng(SEED), random.Random(SEED)
    given = await begin(dut, dice)
    memory = Memory(0, np.empty(0, np.uint8))
    for port in range(CORE.ports):
        serve(dut, port, memory, dice)
    elements = clocks = 0
    for direction, fault in (("read", Fault.READ_RESPONSE), ("write", Fault.WRITE_RESPONSE)):
        batch = any_batch(rng, 6)
        name, _, address = dice.choice([use for use in uses(batch) if use[1] == direction])
        port = CORE.port_of[name]
        memory.base, memory.image, memory.errors = batch.base, batch.memory.copy(), {(port, direction, address)}
        found, took = await carry_out(dut, given, batch)
        elements, clocks = elements + written(batch), clocks + took
        # Another stream of the port may have come to the same place first.
        met = SOURCES[found["error"] >> 8 & 7]
        assert CORE.port_of[met] == port
        trouble = Trouble(fault, met, address)
        wrong = check_fault_outcome(batch, expect(batch, CORE), memory.image, trouble, found)
        assert wrong + memory.strays == []

        batch = any_batch(rng, 3)
        memory.base, memory.image, memory.errors = batch.base, batch.memory.copy(), set()
        found, took = await carry_out(dut, given, batch)
        assert check_outcome(batch, expect(batch, CORE), memory.image, found) + memory.strays == []
        elements, clocks = elements + written(batch), clocks + took
    say(Said("slaves_that_answer_with_errors", elements, clocks, met=2, kinds=2))
