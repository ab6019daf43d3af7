"""Registers and memories without initial values, so that a simulator can start them at random."""

from __future__ import annotations

import re

from amaranth.hdl import Module, Signal
from amaranth.lib.memory import Memory

from relay_eps_hw.verilog import convert
from relay_eps_sim.verilog import without_initial_values


def test_nothing_has_an_initial_value_and_all_else_stays():
    m = Module()
    i, o = Signal(4, name="i"), Signal(4, name="o")
    # Of two registers of one name, one has to be renamed, to a name that Verilog escapes.
    count, late = Signal(4, init=5, name="count"), Signal(4, name="count")
    m.submodules.memory = memory = Memory(shape=4, depth=16, init=[3, 2, 1])
    write, read = memory.write_port(), memory.read_port()
    m.d.sync += [count.eq(count + 1), late.eq(read.data)]
    m.d.comb += [
        write.addr.eq(count),
        write.data.eq(i),
        write.en.eq(1),
        read.addr.eq(count),
        o.eq(late ^ count),
    ]
    text = convert(m, "top", [i, o])
    assert "initial count = 4'h5;" in text
    assert re.search(r"initial \\count\$\d+  = 4'h0;", text)
    assert "[0] = 4'h3" in text
    stripped = without_initial_values(text)
    # Yosys starts each process with a register of its own, which is no part of the design.
    left = [line for line in stripped.splitlines() if "initial" in line and "$auto$" not in line]
    assert left == []
    assert "4'h3" not in stripped
    assert stripped.count("always @(posedge clk)") == text.count("always @(posedge clk)") > 0
    assert stripped.count(" reg ") == text.count(" reg ")
