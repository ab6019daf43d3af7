"""cocotb benches of all float units, which stand side by side in one design: random stalls, and SoftFloat as judge."""

from __future__ import annotations

import random
from enum import Enum

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from tests.hw.cocotb.benches import DEPTH, SEED, UNITS, Said, say
from tests.hw.oracle import differences

VECTORS = 3000
#: cocotb names tests after an enumeration's members. (mypy wants them written out.)
Unit = Enum("Unit", list(UNITS))  # type: ignore[misc]


@cocotb.test()
@cocotb.parametrize(tested=list(Unit))
async def unit(dut, tested):
    """Vectors of every kind: special values, sweeps, near misses and random ones; three clocks in ten stall."""
    name, number = tested.name, tested.value
    case = UNITS[name]
    rng = np.random.default_rng(SEED + number)
    dice = random.Random(SEED + number)
    operands = case.sample(rng, VECTORS)
    judged = case.judge(*operands)
    component = case.make(DEPTH, None)
    enable = getattr(dut, f"{name}__en")
    ports = [getattr(dut, f"{name}__{operand}") for operand in component.OPERANDS]
    result = getattr(dut, f"{name}__o")
    columns = case.inputs(operands)

    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    await FallingEdge(dut.clk)
    got: list[int] = []
    clocks = 0
    for at in range(VECTORS + component.latency):
        while dice.random() < 0.3:
            # Operands of a stalled clock must not get in.
            enable.value = 0
            for port in ports:
                port.value = dice.getrandbits(len(port))
            await FallingEdge(dut.clk)
            clocks += 1
        enable.value = 1
        if at < VECTORS:
            for port, column in zip(ports, columns, strict=True):
                port.value = int(column[at])
        await FallingEdge(dut.clk)
        clocks += 1
        if at + 1 >= component.latency:
            got.append(int(result.value))
    wrong = differences(np.array(got[:VECTORS], np.uint32), judged.bits, case.fmt)
    kinds = case.kinds(operands, judged)
    met = sum(1 for mask in kinds.values() if mask.any())
    say(Said(name, VECTORS, clocks, met=met, kinds=len(kinds)))
    assert not wrong.size, (
        f"{wrong.size} results differ, first of {', '.join(f'{column[wrong[0]]:#x}' for column in columns)}: "
        f"{got[wrong[0]]:#x}, not {judged.bits[wrong[0]]:#x}"
    )
