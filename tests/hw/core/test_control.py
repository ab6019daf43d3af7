"""The registers over AXI4-Lite: each as its table says, whatever the manager's timing."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
from amaranth.sim import Simulator, SimulatorContext

from relay_eps_hw.core.axi import OKAY
from relay_eps_hw.core.control import CONSTANTS, USED, Control
from relay_eps_hw.interface.registers import REGISTERS, Access, registers
from tests.hw.core.lite import Manager

VALUES = {name: 0x5A3C_96F1_1234_8765 & ((1 << REGISTERS[name].width) - 1) for name in CONSTANTS}
Bench = Callable[[SimulatorContext, Control, Manager], Awaitable[None]]


def run(bench: Bench, dice: random.Random | None = None) -> None:
    control = Control(VALUES)

    async def testbench(ctx: SimulatorContext) -> None:
        await bench(ctx, control, Manager(ctx, control.bus, dice))

    simulator = Simulator(control)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()


async def read(manager: Manager, name: str) -> int:
    """A register of one or two words."""
    register = REGISTERS[name]
    words = [await manager.read(register.offset + 4 * word) for word in range(register.words)]
    assert {response for _, response in words} == {OKAY}
    return sum(data << 32 * number for number, (data, _) in enumerate(words))


async def pulse(ctx: SimulatorContext, signal: object) -> None:
    ctx.set(signal, 1)
    await ctx.tick()
    ctx.set(signal, 0)


def test_arguments_keep_the_bytes_that_were_written_and_nothing_else_changes_them(seed: int):
    dice = random.Random(seed)

    async def bench(ctx: SimulatorContext, control: Control, manager: Manager) -> None:
        held = dict.fromkeys((register.name for register in registers(Access.ARGUMENT)), 0)
        writable = [(register, word) for register in registers(Access.ARGUMENT) for word in range(register.words)]
        others = [place.offset for place in registers(Access.STATUS)] + [0x18, 0x20, 0x800, 0xFFC]
        for _ in range(150):
            data, strobes = dice.getrandbits(32), dice.getrandbits(4)
            if dice.random() < 0.2:
                assert await manager.write(dice.choice(others), data, strobes) == OKAY
            else:
                register, word = dice.choice(writable)
                assert await manager.write(register.offset + 4 * word, data, strobes) == OKAY
                mask = sum(0xFF << 8 * byte for byte in range(4) if strobes >> byte & 1) << 32 * word
                held[register.name] = held[register.name] & ~mask | data << 32 * word & mask
            name = dice.choice(list(held))
            assert await read(manager, name) == held[name]
            assert [ctx.get(getattr(control, name)) for name in USED] == [held[name] for name in USED]

    run(bench, dice)


def test_statuses_and_constants_read_as_they_are_and_reserved_places_as_zero(seed: int):
    dice = random.Random(seed)

    async def bench(ctx: SimulatorContext, control: Control, manager: Manager) -> None:
        values = dict(VALUES)
        for register in registers(Access.STATUS):
            if register.name not in VALUES:
                values[register.name] = dice.getrandbits(register.width)
                ctx.set(getattr(control, register.name), values[register.name])
        for name, value in values.items():
            assert await read(manager, name) == value, name
        taken = {place.offset + 4 * word for place in REGISTERS for word in range(place.words)}
        free = [offset for offset in range(0, REGISTERS.size, 4) if offset not in taken]
        for offset in dice.sample(free, 60):
            assert await manager.read(offset) == (0, OKAY)

    run(bench, dice)


def test_a_batch_is_started_runs_and_is_done_once():
    async def bench(ctx: SimulatorContext, control: Control, manager: Manager) -> None:
        assert await read(manager, "control") == 0b1100, "idle and ready"
        await manager.write(0, 1)
        assert ctx.get(control.start)
        assert await read(manager, "control") == 0b0001
        await pulse(ctx, control.done)
        assert not ctx.get(control.start)
        assert await read(manager, "control") == 0b1110, "done, idle and ready"
        assert await read(manager, "control") == 0b1100, "reading has cleared done"

    run(bench)


def test_writing_other_bits_of_control_or_its_other_bytes_starts_nothing():
    async def bench(ctx: SimulatorContext, control: Control, manager: Manager) -> None:
        await manager.write(0, 0xFFFF_FFFE)
        await manager.write(0, 1, strobes=0b1110)
        assert not ctx.get(control.start)

    run(bench)


def test_an_interrupt_is_raised_where_it_is_asked_for_until_it_is_turned_over():
    async def bench(ctx: SimulatorContext, control: Control, manager: Manager) -> None:
        await pulse(ctx, control.done)
        assert await read(manager, "interrupt_status") == 0, "none is asked for"
        await manager.write(REGISTERS["interrupt_mask"].offset, 1)
        await pulse(ctx, control.done)
        assert await read(manager, "interrupt_status") == 1
        assert not ctx.get(control.interrupt), "they are not enabled"
        await manager.write(REGISTERS["interrupt_enable"].offset, 1)
        assert ctx.get(control.interrupt)
        await manager.write(REGISTERS["interrupt_status"].offset, 1)
        assert not ctx.get(control.interrupt)
        assert await read(manager, "interrupt_status") == 0

    run(bench)


def test_a_soft_reset_is_asked_for_until_the_core_has_drained():
    async def bench(ctx: SimulatorContext, control: Control, manager: Manager) -> None:
        await manager.write(REGISTERS["reset"].offset, 1)
        assert await read(manager, "reset") == 1
        assert ctx.get(control.soft_reset)
        await pulse(ctx, control.drained)
        assert await read(manager, "reset") == 0

    run(bench)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({}, "the constants are identity, version"),
        (VALUES | {"more": 1}, "the constants are identity, version"),
        (VALUES | {"version": 1 << 32}, "version = 0x100000000 does not fit in 32 bits"),
        (VALUES | {"limits": -1}, "limits = -0x1 does not fit"),
    ],
)
def test_constants_that_are_missing_unknown_or_too_large_are_refused(constants: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        Control(constants)
