"""cocotb benches of all float units, which stand side by side in one design: random stalls, and SoftFloat as judge."""

from __future__ import annotations

import random

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from tests.hw.cocotb.benches import DEPTH, SEED, UNIT_CASES, say
from tests.hw.oracle import differences

VECTORS = 2500


@cocotb.test()
@cocotb.parametrize(number=list(range(len(UNIT_CASES))))
async def unit(dut, number):
    """Half of the vectors are special values, sweeps and near misses, half random; three clocks in ten stall."""
    case = UNIT_CASES[number]
    rng = np.random.default_rng(SEED + number)
    dice = random.Random(SEED + number)
    fixed, random_ones = case.fixed(rng), case.random(rng, VECTORS // 2)
    chosen = rng.permutation(len(fixed[0]))[: VECTORS - VECTORS // 2]
    operands = tuple(np.concatenate([a[chosen], b]) for a, b in zip(fixed, random_ones, strict=True))
    wanted = case.judge(*operands).bits
    component = case.make(DEPTH, None)
    enable = getattr(dut, f"{case.name}__en")
    ports = [getattr(dut, f"{case.name}__{name}") for name in component.OPERANDS]
    result = getattr(dut, f"{case.name}__o")
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
    wrong = differences(np.array(got[:VECTORS], np.uint32), wanted, case.fmt)
    say(case.name, VECTORS, clocks, passed=not wrong.size)
    assert not wrong.size, f"{wrong.size} of {case.name} differ, first {[hex(c[wrong[0]]) for c in columns]}"
