"""``relay-eps hw``."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay_eps.cli.app import app
from relay_eps_hw import cli
from relay_eps_hw.synthesis import report as reports
from relay_eps_hw.synthesis.designs import unit_design
from relay_eps_hw.synthesis.nextpnr import Clock
from relay_eps_hw.synthesis.paths import Paths
from relay_eps_hw.synthesis.yosys import Area
from relay_eps_hw.verilog import lanes_verilog
from tests.host.test_doctor import run_without

ROW = reports.Row(
    "add",
    12,
    Area(300, 0, 4, 500, 0, 0, Paths(3, 1, 6)),
    Area(280, 0, 4, 500, 0, 0, Paths(3, 1, 6)),
    Clock((240.0, 250.0, 230.0), 560, 600, 0, 0),
)


def hw(*arguments: str):
    return CliRunner().invoke(app, ["hw", *arguments])


def test_verilog_writes_the_lanes_to_a_file(tmp_path: Path):
    target = tmp_path / "lanes.v"
    done = hw("verilog", "--lanes", "2", "-o", str(target))
    assert done.exit_code == 0, done.output
    assert target.read_text() == lanes_verilog(2)
    assert [path.name for path in tmp_path.iterdir()] == ["lanes.v"]


def test_a_dash_is_standard_output():
    done = hw("verilog", "-o", "-")
    assert done.exit_code == 0
    assert done.stdout == lanes_verilog(1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["verilog", "--lanes", "3", "-o", "x.v"], "3 lanes are not supported: use one of 1, 2, 4, 8, 16"),
        (["verilog", "-o", "nowhere/x.v"], "the folder nowhere does not exist"),
        (["report", "--unit", "addd"], "there is no unit 'addd': use one of add, add_non_negative, multiply"),
        (["report", "--lanes", "0"], "0 lanes are not supported"),
        (["report", "--depth-sweep"], "--depth-sweep needs --unit"),
        (["report", "--unit", "add", "--lanes", "3"], "--unit measures a unit instead of the lanes"),
        (["report", "--json", "nowhere/x.json"], "the folder nowhere does not exist"),
        (["report", "--json", "."], ". is a folder"),
        (["verilog", "-o", "."], ". is a folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = hw(*arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {sentence}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--depth", "medium"], ["--target", "spartan"]])
def test_unknown_choices_are_refused_with_those_there_are(arguments: list[str]):
    done = hw("verilog", "-o", "-", *arguments)
    assert done.exit_code == 2
    assert "is not one of" in done.stderr


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch):
    target = tmp_path / "lanes.v"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(os, "replace", fail)
    done = hw("verilog", "--depth", "shallow", "-o", str(target))
    assert done.exit_code == 1
    assert "No space left on device" in done.stderr
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["lanes.v"]


def test_without_amaranth_it_says_what_to_install():
    code = "sys.argv = ['relay-eps', 'hw', %r, *%r]\nfrom relay_eps.cli import main; main()"
    for command, arguments in (("verilog", ["-o", "-"]), ("report", [])):
        done = run_without(["amaranth", "torch"], code % (command, arguments))
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr == "error: the gateware needs amaranth: pip install 'relay-eps[hw]'\n"


def test_help_needs_no_amaranth():
    code = "sys.argv = ['relay-eps', 'hw', 'report', '--help']\nfrom relay_eps.cli import main; main()"
    done = run_without(["amaranth", "torch"], code)
    assert done.returncode == 0, done.stderr
    assert "--depth-sweep" in done.stdout


def test_a_traceback_is_had_on_demand(monkeypatch):
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "1")
    done = hw("verilog", "--lanes", "3", "-o", "-")
    assert isinstance(done.exception, ValueError)


def test_a_link_is_followed_and_a_device_is_left_in_place(tmp_path: Path):
    (tmp_path / "link.v").symlink_to(tmp_path / "lanes.v")
    assert hw("verilog", "--depth", "shallow", "-o", str(tmp_path / "link.v")).exit_code == 0
    assert (tmp_path / "link.v").is_symlink()
    assert (tmp_path / "lanes.v").read_text().startswith("// relay_eps_lanes")
    assert hw("verilog", "--depth", "shallow", "-o", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


def test_ctrl_c_ends_it_with_130_and_no_file(tmp_path: Path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reports, "measure", interrupt)
    done = hw("report", "--unit", "add", "--json", str(tmp_path / "add.json"))
    assert done.exit_code == 130
    assert done.stderr == "interrupted\n"
    assert list(tmp_path.iterdir()) == []


def measured(monkeypatch, row: reports.Row) -> list[int]:
    """From now on a report measures nothing and has this row; returns the latencies of what it is asked for."""
    asked: list[int] = []

    def measure(designs, seeds) -> list[reports.Row]:
        asked.extend(design.latency for design in designs)
        return [row for _ in designs]

    monkeypatch.setattr(reports, "measure", measure)
    return asked


def test_report_shows_a_table_and_writes_json(tmp_path: Path, monkeypatch):
    measured(monkeypatch, ROW)
    done = hw("report", "--unit", "add", "--json", str(tmp_path / "add.json"))
    assert done.exit_code == 0, done.output
    for shown in ("add", "304", "284", "3, 1 + 6", "240.0", "240, 250, 230", "560"):
        assert shown in done.stdout
    (row,) = json.loads((tmp_path / "add.json").read_text())
    assert row["xc7"]["all_luts"] == 304
    assert row["xc7"]["paths"] == {"lut_levels": 3, "lut_levels_with_carry": 1, "carry_cells": 6}
    assert row["ecp5"]["mhz"] == [240.0, 250.0, 230.0]
    assert row["ecp5"]["median_mhz"] == 240.0


def test_a_sweep_measures_the_unit_at_every_depth(monkeypatch):
    asked = measured(monkeypatch, ROW)
    assert hw("report", "--unit", "widen", "--depth-sweep").exit_code == 0
    assert asked == list(range(1, unit_design("widen").latency + 1))


def test_what_does_not_fit_the_lattice_device_is_said_so(tmp_path: Path, monkeypatch):
    measured(monkeypatch, replace(ROW, ecp5=None))
    done = hw("report", "--lanes", "16", "--json", str(tmp_path / "lanes.json"))
    assert done.exit_code == 0, done.output
    assert "does not fit" in done.stdout
    assert json.loads((tmp_path / "lanes.json").read_text())[0]["ecp5"] is None
