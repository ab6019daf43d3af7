"""The streams around a float unit, proved: with any operands, gaps and back-pressure, for ever.

In place of the arithmetic stands a unit of the same pipeline that carries a tag.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from amaranth.hdl import Assert, Cat, Const, Elaboratable, Module, Signal

from relay_eps_hw.faults import Faults
from relay_eps_hw.floats.pipeline import Pipeline
from relay_eps_hw.floats.streamed import Streamed
from relay_eps_hw.floats.unit import FloatUnit
from tests.hw.faulty import fault_names
from tests.hw.formal.prove import Watched, count, past, prove

DEPTHS = (1, 2, 3, 4)
TAG = 2


class Carry(FloatUnit):
    """``o`` is ``tag``, after as many steps as there are registers in the deepest that is proved.

    ``stages`` are the tags in its registers, the first first.
    """

    OPERANDS = ("tag",)

    def __init__(self, *, depth: int, faults: Faults | None = None) -> None:
        super().__init__((TAG,), TAG, (1,) * max(DEPTHS), depth, faults)
        self.stages = [Signal(TAG, name=f"stage_{number}") for number in range(depth)]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        value = self.tag
        stages = iter(self.stages)
        for step in range(self.steps):
            value = p.cut(tag=value).tag
            if p.registered(step):
                m.d.comb += next(stages).eq(value)
        m.d.comb += self.o.eq(value)
        p.finish()
        return m


class Restless(Carry):
    """One that moves on during a stall."""

    def pipeline(self, m: Module) -> Pipeline:
        return Pipeline(m, Const(1), self._weights, self.depth)


class Hasty(Carry):
    """One that says that its results come a clock before they do."""

    @property
    def latency(self) -> int:
        return self.depth - 1


class StreamedIsRight(Elaboratable):
    """What is claimed of `Streamed`, and what of its inside shows it."""

    def __init__(self, depth: int, *, kind: type[Carry] = Carry, fault: str | None = None) -> None:
        self.faults = None if fault is None else Faults()
        self.fault = fault
        self.unit = kind(depth=depth, faults=self.faults)
        self.dut = Streamed(self.unit)
        self.number = Signal(3)
        self.free = [self.dut.i.valid, self.dut.i.payload.as_value(), self.dut.o.ready, self.number]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.dut = dut = self.dut
        if self.faults is not None and self.fault is not None:
            m.d.comb += self.faults.select.eq(self.faults.number(self.fault))
        enters, leaves = dut.i.valid & dut.i.ready, dut.o.valid & dut.o.ready
        watched = Watched(m, self.number, enters, leaves, dut.i.payload.tag)

        # None is lost, doubled or made up; they keep their order; none changes.
        inside = watched.entered - watched.left
        m.d.comb += Assert(inside[: len(self.number)] == count(dut.occupied))
        with m.If(dut.o.valid & (watched.left == watched.number)):
            m.d.comb += Assert(dut.o.payload == watched.holds)

        # A result that waits stays, and stays the same.
        waited, payload = past(m, dut.o.valid & ~dut.o.ready), past(m, dut.o.payload)
        with m.If(waited):
            m.d.comb += [Assert(dut.o.valid), Assert(dut.o.payload == payload)]

        # One enters in every clock in which no result waits, and `latency` such clocks later it leaves.
        m.d.comb += Assert(dut.i.ready == (dut.o.ready | ~dut.o.valid))
        moved = Cat(past(m, dut.i.ready, clocks) for clocks in range(1, dut.latency + 1))
        entered = past(m, watched.entered, dut.latency)
        with m.If(moved.all()):
            m.d.comb += Assert(watched.left == entered)

        # What makes the induction close: the watched tag lies in the stage that its place among the others says.
        for stage, tag in enumerate(self.unit.stages[: dut.latency]):
            later = count(dut.occupied[stage + 1 :])
            with m.If(dut.occupied[stage] & (watched.ahead(watched.left) == later)):
                m.d.comb += Assert(tag == watched.holds)
        return m


@pytest.mark.parametrize("depth", DEPTHS)
def test_streams_lose_double_reorder_and_change_no_element(tmp_path: Path, depth: int):
    claim = StreamedIsRight(depth)
    outcome = prove(claim, claim.free, tmp_path, steps=depth + 2)
    assert outcome.proved, outcome.log


@pytest.mark.parametrize("fault", fault_names(lambda faults: Streamed(Carry(depth=1, faults=faults))))
def test_each_fault_breaks_the_proof(tmp_path: Path, fault: str):
    claim = StreamedIsRight(2, fault=fault)
    assert prove(claim, claim.free, tmp_path, steps=6, refute=True).refuted


@pytest.mark.parametrize("kind", [Restless, Hasty])
def test_a_unit_that_does_not_keep_to_its_part_breaks_the_proof(tmp_path: Path, kind: type[Carry]):
    claim = StreamedIsRight(2, kind=kind)
    assert prove(claim, claim.free, tmp_path, steps=6, refute=True).refuted
