"""The longest paths between registers, in netlists whose paths can be counted by hand."""

from __future__ import annotations

import random

from relay_eps_hw.synthesis.paths import Paths, longest_paths
from tests.hw.synthesis.netlist import cell, module


def lut(output: int, *inputs: int):
    return cell(f"LUT{len(inputs)}", {"O": output}, {f"I{place}": bit for place, bit in enumerate(inputs)})


def register(output: int, data: int):
    return cell("FDRE", {"Q": output}, {"D": data, "C": 1, "CE": "1", "R": "0"})


def test_without_logic_there_are_no_levels():
    assert longest_paths(module(register(3, 2), register(4, 3))) == Paths(0, 0, 0)


def test_a_register_begins_a_new_path():
    cells = [lut(11, 2, 3), lut(12, 11), register(13, 12), lut(14, 13, 2), register(15, 14)]
    assert longest_paths(module(*cells)).lut_levels == 2


def test_the_order_of_the_cells_does_not_matter(seed: int):
    cells = [lut(10 + level, 9 + level, 2) for level in range(6)]
    random.Random(seed).shuffle(cells)
    assert longest_paths(module(*cells)).lut_levels == 6


def test_multiplexers_of_the_slice_are_no_level():
    cells = [lut(11, 2), lut(12, 3), cell("MUXF7", {"O": 13}, {"I0": 11, "I1": 12, "S": 2}), lut(14, 13)]
    assert longest_paths(module(*cells)).lut_levels == 2


def carry4(carry_in, out: list[int], carry_out: list[int], select: list, data: list):
    return cell("CARRY4", {"O": out, "CO": carry_out}, {"CI": carry_in, "CYINIT": "0", "S": select, "DI": data})


def test_paths_through_carry_chains_are_counted_apart():
    low = carry4("0", [20, 21, 22, 23], [24, 25, 26, 27], [11, "0", "0", "0"], [2, "0", "0", "0"])
    high = carry4(27, [30, 31, 32, 33], [34, 35, 36, 37], ["0"] * 4, ["0"] * 4)
    cells = [lut(11, 2, 3), low, high, lut(40, 33), lut(50, 2), lut(51, 50), lut(52, 51), lut(53, 52)]
    assert longest_paths(module(*cells)) == Paths(lut_levels=4, lut_levels_with_carry=2, carry_cells=2)


def test_a_carry_cell_leads_from_low_bits_to_high_ones_only():
    # Bit 3 comes late, through two LUTs; bit 0 of the sum does not wait for it, its carry out does.
    carry = carry4("0", [20, 21, 22, 23], [24, 25, 26, 27], [2, "0", "0", 12], [2, "0", "0", 3])
    before = [lut(11, 2), lut(12, 11)]
    assert longest_paths(module(*before, carry, lut(30, 20))).lut_levels_with_carry == 2
    assert longest_paths(module(*before, carry, lut(30, 27))).lut_levels_with_carry == 3


def test_what_looks_like_a_loop_through_a_carry_cell_is_none():
    carry = carry4("0", [20, 21, 22, 23], [24, 25, 26, 27], [2, 11, "0", "0"], [2, "0", "0", "0"])
    assert longest_paths(module(carry, lut(11, 20))) == Paths(0, 1, 2)


def test_a_ram_of_luts_is_a_level_from_its_address_to_the_output_of_that_address():
    ram = cell("RAM32M", {"DOA": [20, 21], "DOB": [22, 23]}, {"ADDRA": [11], "ADDRB": [2], "DIA": [12], "WCLK": 1})
    assert longest_paths(module(lut(11, 2), ram)).lut_levels == 2
    assert longest_paths(module(lut(11, 2), lut(12, 11), ram)).lut_levels == 2
    assert longest_paths(module(lut(11, 2), ram, lut(30, 22))).lut_levels == 2


def test_two_port_rams_have_an_address_for_each_output():
    ram = cell("RAM64X1D", {"SPO": 20, "DPO": 21}, {"A0": 12, "DPRA0": 2, "D": 12, "WE": 12, "WCLK": 1})
    assert longest_paths(module(lut(11, 2), lut(12, 11), ram)).lut_levels == 3
    assert longest_paths(module(ram, lut(30, 21))).lut_levels == 2


def test_a_shift_registers_output_is_a_level_and_its_input_ends_a_path():
    shift = cell("SRL16E", {"Q": 20}, {"D": 12, "CE": "1", "CLK": 1, "A0": "1", "A1": "0"})
    assert longest_paths(module(lut(11, 2), lut(12, 11), shift, lut(30, 20))).lut_levels == 2


def test_paths_end_at_dsp_blocks():
    dsp = cell("DSP48E1", {"P": [20]}, {"A": [12], "CLK": 1})
    assert longest_paths(module(lut(11, 2), lut(12, 11), dsp, lut(30, 20))).lut_levels == 2
