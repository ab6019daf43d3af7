"""The pictures of docs/hardware.md: the lane as the gateware is, and the plot of a depth sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import hardware
from benchmarks.lane_drawing import Unit, Wait, drawing, latencies, parts
from relay_eps_hw.lane.lane import Lane
from relay_eps_hw.lane.timing import DEEP, lane_timing

ROOT = Path(__file__).parents[1]


def test_the_drawn_clocks_are_those_of_the_lane():
    assert lane_timing(latencies()) == Lane(DEEP).timing


def test_each_unit_begins_where_what_it_waits_for_ends():
    drawn = parts(latencies())
    ends = {part.end for part in drawn} | {0}
    assert all(part.start in ends for part in drawn)
    assert all(part.end > part.start for part in drawn)


def test_no_two_units_overlap():
    units = [part for part in parts(latencies()) if isinstance(part, Unit)]
    for number, one in enumerate(units):
        for other in units[number + 1 :]:
            apart_in_time = one.end <= other.start or other.end <= one.start
            assert apart_in_time or one.last < other.first or other.last < one.first


def test_the_drawing_in_the_documents_is_up_to_date():
    assert (ROOT / "docs" / "lane.svg").read_text() == drawing(), (
        "draw it again: python benchmarks/hardware.py --lane-drawing docs/lane.svg"
    )


def test_the_drawing_names_every_wait():
    waits = [part for part in parts(latencies()) if isinstance(part, Wait)]
    text = "".join(ElementTree.fromstring(drawing()).itertext())
    assert [wait.text for wait in waits if wait.text not in text] == []


@pytest.mark.parametrize(("deepest", "count"), [(12, 3), (36, 6), (3, 8), (1, 4), (29, 1)])
def test_a_sweep_has_the_deepest_form_and_a_few_more(deepest: int, count: int):
    depths = hardware.some_depths(deepest, count)
    assert depths[-1] == deepest
    assert depths == sorted(set(depths))
    assert len(depths) <= count
    assert count == 1 or depths[0] == 1


def row(unit: str, depth: int, mhz: list[float] | None) -> dict[str, Any]:
    paths = {"lut_levels": 3, "lut_levels_with_carry": 4, "carry_cells": 7}
    area = {"all_luts": 1234, "paths": paths}
    placed = mhz and {"mhz": mhz, "median_mhz": sorted(mhz)[len(mhz) // 2], "lut4": 700, "flip_flop": 60 * depth}
    return {"design": unit, "latency": depth, "xc7": area, "xcup": area, "ecp5": placed}


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["hardware", *options])
    hardware.main()


def test_reports_become_a_table_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    add = [row("add", 1, [50.0, 52.0, 51.0]), row("add", 12, [230.0, 250.0, 245.0])]
    (tmp_path / "add.json").write_text(json.dumps(add))
    (tmp_path / "lanes.json").write_text(json.dumps([row("16 lanes", 147, None)]))
    read = ("--read", *(str(tmp_path / name) for name in ("add.json", "lanes.json")))
    run(monkeypatch, *read, "--plot", str(tmp_path / "plot.svg"), "--json", str(tmp_path / "all.json"))
    printed = capsys.readouterr().out
    assert "245.0" in printed
    assert "1,234" in printed
    assert "does not fit" in printed
    drawn = (tmp_path / "plot.svg").read_text()
    text = "".join(ElementTree.fromstring(drawn).itertext())
    assert "add" in text
    assert "16 lanes" not in text, "what was not placed has no clock to draw"
    assert len(json.loads((tmp_path / "all.json").read_text())) == 3
    run(monkeypatch, *read, "--plot", str(tmp_path / "again.svg"))
    assert (tmp_path / "again.svg").read_text() == drawn


def test_without_reports_it_measures_what_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[tuple[str, int, int]] = []

    def measured(designs: Any, seeds: Any) -> Any:
        asked.extend((design.name, design.latency, len(seeds)) for design in designs)
        return [row(design.name, design.latency, [100.0]) for design in designs]

    monkeypatch.setattr(hardware, "measure", measured)
    monkeypatch.setattr(hardware, "to_json", json.dumps)
    run(monkeypatch, "--units", "widen", "--depths", "2", "--seeds", "2")
    assert asked == [("widen", 1, 2), ("widen", 3, 2)]
    assert "widen" in capsys.readouterr().out
