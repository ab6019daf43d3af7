"""The core on block RAM: a batch that the host writes into the memory runs, and its results are there."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator, SimulatorContext

from relay_eps.fpga.batch import Descriptor, decode, encode
from relay_eps.fpga.interface import SOURCES, Fault, Opcode, State
from relay_eps_hw.core.block_ram import BlockRam
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.shape import Shape
from relay_eps_hw.core.small import SmallTop
from relay_eps_hw.interface.registers import REGISTERS
from tests.hw.core.lite import Manager
from tests.hw.lane.stand_in import StandInLane

CONFIG = CoreConfig(lanes=1, ports=1, beat_bytes=8, address_bits=32)
MEMORY = 1 << 12
RECORDS, DATA, COPY = 0x400, 0x800, 0xC00


def run(descriptors: list[Descriptor], data: np.ndarray, error: int = 0) -> np.ndarray:
    """The memory after a batch, whose fault is ``error``; ``data`` lies at `DATA` before it."""
    image = np.zeros(MEMORY, np.uint8)
    image[: 128 * len(descriptors)] = encode(descriptors).ravel()
    image[DATA : DATA + data.nbytes] = data.view(np.uint8)
    top = SmallTop(CONFIG, StandInLane, MEMORY)
    after = np.zeros(MEMORY // 8, np.uint64)

    async def host(ctx: SimulatorContext) -> None:
        manager = Manager(ctx, top.control)
        ctx.set(top.write, 1)
        for row, word in enumerate(image.view(np.uint64).tolist()):
            ctx.set(top.row, row)
            ctx.set(top.data, word)
            await ctx.tick()
        ctx.set(top.write, 0)
        arguments = {"count": len(descriptors), "completion_address": RECORDS}
        arguments |= {"interrupt_mask": 1, "interrupt_enable": 1, "control": 1}
        for name, value in arguments.items():
            await manager.write(REGISTERS[name].offset, value)
        for _ in range(4000):
            if ctx.get(top.interrupt):
                break
            await ctx.tick()
        assert ctx.get(top.interrupt), "the batch ends"
        assert (await manager.read(REGISTERS["error"].offset))[0] == error
        for row in range(len(after)):
            ctx.set(top.row, row)
            await ctx.tick()
            after[row] = ctx.get(top.out)

    simulator = Simulator(top)
    simulator.add_clock(1e-8)
    simulator.add_testbench(host)
    simulator.run()
    return after.view(np.uint8)


def test_a_fill_and_a_copy_run_in_block_ram(rng: np.random.Generator):
    data = rng.integers(1 << 32, size=37, dtype=np.uint32)
    copy = Descriptor(Opcode.COPY, 37, tag=1, addresses={"p": DATA, "wire": COPY})
    fill = Descriptor(Opcode.FILL, 35, tag=2, pattern=0x1234_5678, addresses={"wire": DATA})
    after = run([copy, fill], data)
    records = decode(after[RECORDS : RECORDS + 128], 2)
    assert [(record.state, record.tag) for record in records] == [(State.DONE, 1), (State.DONE, 2)]
    assert np.array_equal(after[COPY : COPY + data.nbytes].view(np.uint32), data)
    filled = np.concatenate([np.full(35, 0x1234_5678, np.uint32), data[35:]])
    assert np.array_equal(after[DATA : DATA + data.nbytes].view(np.uint32), filled)
    assert not after[COPY + data.nbytes :].any(), "nothing beyond the section is written"


def test_a_section_beyond_the_memory_is_answered_with_an_error():
    beyond = Descriptor(Opcode.FILL, 4, addresses={"wire": MEMORY})
    stream = SOURCES.index("wire") << 8
    after = run([beyond], np.zeros(1, np.uint32), Fault.WRITE_RESPONSE | stream)
    record = decode(after[RECORDS : RECORDS + 64], 1)[0]
    assert (record.state, record.fault, record.fault_address) == (State.FAULTED, Fault.WRITE_RESPONSE, MEMORY)


@pytest.mark.parametrize("rows", [0, 1, 3, 100])
def test_rows_that_no_address_counts_are_refused(rows: int):
    with pytest.raises(ValueError, match="use a power of two"):
        BlockRam(Shape(8, 16), rows)


def test_a_core_of_several_ports_is_refused():
    with pytest.raises(ValueError, match="use ports=1"):
        SmallTop(CoreConfig(lanes=1, ports=2, beat_bytes=8), StandInLane, MEMORY)
