"""Area: cells counted from a netlist, and one small design really synthesised."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_eps_hw.synthesis.paths import Paths
from relay_eps_hw.synthesis.yosys import LUT_RAMS, amd_area, read_area
from tests.hw.synthesis.netlist import cell, module


def test_each_kind_of_cell_is_counted():
    kinds = ["LUT1", "LUT6", "LUT6", "SRL16E", "SRLC32E", "FDRE", "FDSE", "FDRE_1", "DSP48E1", "DSP48E2", "CARRY4"]
    kinds += ["RAMB18E1", "RAMB36E2", "RAM32M", "RAM64M", "RAM32X1D", "MUXF7", "INV", "GND", "VCC", "$scopeinfo"]
    area = read_area(module(*(cell(kind, {}, {}) for kind in kinds)))
    assert (area.lut, area.shift_register, area.flip_flop, area.dsp, area.block_ram_18k) == (3, 2, 3, 2, 3)
    assert area.lut_ram == 4 + 4 + 2
    assert area.all_luts == 3 + 2 + 10


@pytest.mark.parametrize("kind", ["RAM32M", "RAM64M"])
def test_a_ram_with_four_ports_is_four_luts(kind: str):
    assert LUT_RAMS[kind] == 4


def test_a_cell_that_is_not_known_is_not_left_out_in_silence():
    with pytest.raises(RuntimeError, match="cells of type URAM288"):
        read_area(module(cell("URAM288", {}, {})))


# A parity of 8 bits is two levels of LUTs; the sum that follows it is a carry chain after registers.
SMALL = """
module small(input clk, input [7:0] a, b, output reg [8:0] sum, output reg parity, output reg [23:0] product);
  reg [7:0] x, y;
  always @(posedge clk) begin
    x <= a; y <= b;
    sum <= x + y;
    parity <= ^x;
    product <= {x, y[7:0]} * y;
  end
endmodule
"""


@pytest.mark.parametrize("family", ["xc7", "xcup"])
def test_a_small_design_is_really_synthesised(tmp_path: Path, family: str):
    area = amd_area(SMALL, "small", family, tmp_path)
    assert area.dsp == 1
    assert area.block_ram_18k == area.lut_ram == area.shift_register == 0
    assert area.paths.lut_levels == 2
    assert area.paths.lut_levels_with_carry == 1
    # Nine bits of sum, four to a cell.
    assert area.paths.carry_cells == 3


def test_the_paths_are_part_of_it():
    area = read_area(module(cell("LUT1", {"O": 11}, {"I0": 2}), cell("LUT1", {"O": 12}, {"I0": 11})))
    assert area.paths == Paths(2, 0, 0)


def test_a_part_that_was_measured_alone_can_be_taken_away():
    whole = read_area(module(cell("LUT1", {"O": 11}, {"I0": 2}), cell("FDRE", {"Q": 12}, {"D": 11})))
    part = read_area(module(cell("LUT1", {"O": 11}, {"I0": 2})))
    left = whole.less(part)
    assert (left.all_luts, left.flip_flop) == (0, 1)
    assert left.paths == whole.paths
