"""What control and movers cost: the core without its lanes, beside one lane. `python -m benchmarks.core_area`."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from rich.console import Console
from rich.table import Table

from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface.vendor import KERNEL
from relay_eps_hw.synthesis.around import around_lanes
from relay_eps_hw.synthesis.designs import lanes_design
from relay_eps_hw.synthesis.yosys import Area, amd_area
from relay_eps_hw.targets import Target

#: Zynq has addresses of 32 bits; the last one is for a card with wide ports.
CONFIGS = (
    CoreConfig(1, 1, 8, address_bits=32),
    CoreConfig(1, 4, 8, address_bits=32),
    CoreConfig(2, 4, 8, address_bits=64),
)


def measure(verilog: str, top: str) -> Area:
    """On 7 series, by Yosys."""
    with tempfile.TemporaryDirectory(prefix="relay-eps-") as folder:
        return amd_area(verilog, top, "xc7", Path(folder))


def main() -> None:
    """Print the table."""
    warnings.filterwarnings("ignore", ".* created but never used")
    table = Table("design", "LUTs", "of these RAM", "shift registers", "flip-flops", "block RAM (18K)", "of a lane")
    lane = lanes_design(1)
    one = measure(lane.verilog(Target.GENERIC), lane.module)
    rows = [("one lane, deep, with its buffer", one)]
    for config in CONFIGS:
        ports = f"{config.ports} port{'s' if config.ports > 1 else ''} of {config.beat_bytes} bytes"
        name = (
            f"around {config.lanes} lane{'s' if config.lanes > 1 else ''}: {ports}, {config.address_bits}-bit addresses"
        )
        rows.append((name, measure(around_lanes(config), KERNEL)))
    for name, area in rows:
        figures = (area.all_luts, area.lut_ram, area.shift_register, area.flip_flop, area.block_ram_18k)
        table.add_row(name, *(f"{figure:,}" for figure in figures), f"{area.all_luts / one.all_luts:.2f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
