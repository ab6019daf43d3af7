"""What control and movers cost: the core without its lanes, beside one lane. `python -m benchmarks.core_area`.

The buffer of the lanes' results belongs to the lanes: it is measured, and what is around them is said without it.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from rich.console import Console
from rich.table import Table

from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface.vendor import KERNEL
from relay_eps_hw.synthesis.around import around_lanes, buffer_of_lanes
from relay_eps_hw.synthesis.designs import lanes_design
from relay_eps_hw.synthesis.yosys import Area, amd_area
from relay_eps_hw.targets import Target
from relay_eps_hw.verilog import LANES_MODULE

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
    table = Table("design", "LUTs", "of these RAM", "flip-flops", "block RAM (18K)", "of a lane")
    lane = lanes_design(1)
    one = measure(lane.verilog(Target.GENERIC), lane.module)
    buffers = {lanes: measure(buffer_of_lanes(lanes), LANES_MODULE) for lanes in {config.lanes for config in CONFIGS}}
    rows = [("one lane, deep, with its buffer", one), ("the buffer of one lane", buffers[1])]
    for config in CONFIGS:
        ports = f"{config.ports} port{'s' if config.ports > 1 else ''} of {config.beat_bytes} bytes"
        lanes = f"{config.lanes} lane{'s' if config.lanes > 1 else ''}"
        name = f"around {lanes} and their buffer: {ports}, {config.address_bits}-bit addresses"
        rows.append((name, measure(around_lanes(config), KERNEL).less(buffers[config.lanes])))
    for name, area in rows:
        figures = (area.all_luts, area.lut_ram, area.flip_flop, area.block_ram_18k)
        table.add_row(name, *(f"{figure:,}" for figure in figures), f"{area.all_luts / one.all_luts:.2f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
