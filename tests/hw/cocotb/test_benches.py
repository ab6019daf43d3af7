"""Every cocotb bench passes, and has done what it says."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.hw.cocotb import runs
from tests.hw.cocotb.benches import BENCHES, BRIEF, UNITS

#: One array of lanes is the short form, and the core compiles for long; `make sim` and the slow tests run all.
SLOW = ("lanes_1", "core")


@pytest.mark.parametrize(
    "bench", [pytest.param(bench, marks=[pytest.mark.slow] if bench in SLOW else []) for bench in BENCHES]
)
@pytest.mark.timeout(900)  # On a busy machine its compilation takes minutes.
def test_the_bench_passes(bench: str, seed: int):
    before = dict(os.environ)
    outcome = runs.run(bench, seed=seed & 0x7FFF_FFFF)
    assert outcome.failures == []
    assert os.environ == before
    said = [test.said for test in outcome.tests]
    assert all(one is not None and one.met == one.kinds > 0 for one in said)
    if bench == "units":
        assert [test.name for test in outcome.tests] == list(UNITS)
    if bench in BRIEF:
        return
    whole = outcome.coverage[""]
    # What is left: bits that no operand can toggle, and what units do in formats that are fixed here.
    assert whole.toggle_met > 0.9 * whole.toggle_all
    assert whole.line_met > 0.9 * whole.line_all


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("bench", "inside"), [("lanes_4", "lane_0"), ("core", "engine")])
def test_a_waveform_is_left_where_one_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bench: str, inside: str
):
    monkeypatch.setattr(runs, "WAVES", tmp_path)
    outcome = runs.run(bench, seed=1, waves=True)
    assert outcome.failures == []
    assert outcome.waves == tmp_path / f"{bench}.vcd"
    with outcome.waves.open() as file:
        assert any(f"$scope module {inside} " in line for line in itertools.islice(file, 100_000))


def test_a_bench_that_cannot_be_built_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "BUILD", tmp_path)
    monkeypatch.setattr(runs, "design", lambda bench: ("top", "module top(; endmodule"))
    outcome = runs.run("units", seed=1)
    assert outcome.tests == []
    assert len(outcome.failures) == 1
    assert "build.log" in outcome.failures[0]
    assert "error" in (tmp_path / "units" / "build.log").read_text().lower()
