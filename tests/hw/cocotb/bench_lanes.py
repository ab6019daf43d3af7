"""cocotb bench of the lanes: random operations through the streams, a scoreboard against the golden model."""

from __future__ import annotations

import random

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge

from relay_eps_hw.lane.beat import beat_in_layout, beat_out_layout
from relay_eps_hw.verilog import fields
from tests.hw.cocotb.benches import BENCH, LANES, SEED, say
from tests.hw.lane.workload import beats, mismatches, random_work

BEATS = 700
NUMBER = LANES.get(BENCH, 1)


async def send(dut, payloads, dice):
    """Offer each payload until it is taken, with idle clocks between."""
    for payload in payloads:
        while dice.random() < 0.2:
            await FallingEdge(dut.clk)
        dut.i__payload.value = payload
        dut.i__valid.value = 1
        while True:
            await RisingEdge(dut.clk)
            taken = int(dut.i__ready.value)
            await FallingEdge(dut.clk)
            if taken:
                break
        dut.i__valid.value = 0
        dut.i__payload.value = dice.getrandbits(64)


@cocotb.test()
async def random_operations_with_random_stalls(dut):
    rng = np.random.default_rng(SEED)
    dice = random.Random(SEED)
    layouts = beat_in_layout(NUMBER, 32), beat_out_layout(NUMBER, 32)
    places_in, places_out = (fields(layout) for layout in layouts)
    words_in, words_out = (-(-layout.size // 32) for layout in layouts)
    works = [random_work(rng, int(rng.integers(1, 40))) for _ in range(BEATS * NUMBER // 20)]
    sent = beats(rng, works, NUMBER, places_in, words_in)
    payloads = [int.from_bytes(row.tobytes(), "little") for row in sent]

    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    dut.i__valid.value = 0
    dut.o__ready.value = 0
    dut.rst.value = 1
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    cocotb.start_soon(send(dut, payloads, dice))
    got = np.zeros((len(sent), words_out), np.uint32)
    received = clocks = 0
    while received < len(sent):
        clocks += 1
        assert clocks < 100 * len(sent), f"only {received} of {len(sent)} beats came out"
        dut.o__ready.value = ready = dice.random() < 0.7
        await RisingEdge(dut.clk)
        if ready and int(dut.o__valid.value):
            raw = int(dut.o__payload.value).to_bytes(words_out * 4, "little")
            got[received] = np.frombuffer(raw, np.uint32)
            received += 1
        await FallingEdge(dut.clk)
    wrong = list(mismatches(works, got, NUMBER, places_out))
    say(BENCH, sum(len(work.g) for work in works), clocks, passed=not wrong)
    assert wrong == []
