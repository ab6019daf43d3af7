"""cocotb bench of the lanes: random operations through the streams, a scoreboard against the golden model."""

from __future__ import annotations

import itertools
import random

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge

from relay_eps_hw.floats.wire import WireFormat
from relay_eps_hw.lane.beat import Operation, beat_in_layout, beat_out_layout
from relay_eps_hw.verilog import fields
from tests.hw.cocotb.benches import BENCH, LANES, SEED, Said, say
from tests.hw.lane.workload import Work, beats, has_nonfinite_gradient, mismatches, random_work

OPERATIONS = 250
LONGEST = 40
NUMBER = LANES.get(BENCH, 1)


def kinds(works: list[Work]) -> set[tuple[object, ...]]:
    """What kinds of operations there are among ``works``."""
    return {
        kind
        for work in works
        for kind in (
            ("first", work.operation, work.first),
            ("gradient", work.operation, work.g_format),
            ("wire", work.operation, work.w_format),
            ("tail", len(work.g) % NUMBER),
            ("nonfinite", has_nonfinite_gradient(work)),
        )
    }


ALL_KINDS = {
    *itertools.product(["first"], Operation, [False, True]),
    *itertools.product(["gradient", "wire"], Operation, map(int, WireFormat)),
    *itertools.product(["tail"], range(NUMBER)),
    *itertools.product(["nonfinite"], [False, True]),
}


async def send(dut, payloads, dice):
    """Offer each payload until it is taken, with idle clocks between, in which the payload is random."""
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
        dut.i__payload.value = dice.getrandbits(len(dut.i__payload))


async def receive(dut, count, dice):
    """``count`` payloads, taken in seven clocks of ten, and the clocks it took; what is offered must stay."""
    got: list[int] = []
    clocks = 0
    offered = None
    while len(got) < count:
        clocks += 1
        assert clocks < 100 * count, f"only {len(got)} of {count} beats came out"
        ready = dice.random() < 0.7
        dut.o__ready.value = ready
        await RisingEdge(dut.clk)
        now = int(dut.o__payload.value) if int(dut.o__valid.value) else None
        assert offered in (None, now), f"beat {len(got)} was offered, and then withdrawn or changed"
        if ready and now is not None:
            got.append(now)
        offered = None if ready else now
        await FallingEdge(dut.clk)
    return got, clocks


@cocotb.test()
async def random_operations_with_random_stalls(dut):
    """The scalars change with each operation, tails are poisoned, and both streams stall."""
    rng = np.random.default_rng(SEED)
    dice = random.Random(SEED)
    layouts = beat_in_layout(NUMBER, 32), beat_out_layout(NUMBER, 32)
    places_in, places_out = (fields(layout) for layout in layouts)
    words_in, words_out = (-(-layout.size // 32) for layout in layouts)
    works = [random_work(rng, int(rng.integers(1, LONGEST))) for _ in range(OPERATIONS)]
    sent = beats(rng, works, NUMBER, places_in, words_in)

    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    dut.i__valid.value = 0
    dut.o__ready.value = 0
    dut.rst.value = 1
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    cocotb.start_soon(send(dut, [int.from_bytes(row.tobytes(), "little") for row in sent], dice))
    got, clocks = await receive(dut, len(sent), dice)

    rows = np.stack([np.frombuffer(payload.to_bytes(words_out * 4, "little"), np.uint32) for payload in got])
    elements = sum(len(work.g) for work in works)
    met = kinds(works) & ALL_KINDS
    say(Said("random_operations_with_random_stalls", elements, clocks, met=len(met), kinds=len(ALL_KINDS)))
    assert list(mismatches(works, rows, NUMBER, places_out)) == []
