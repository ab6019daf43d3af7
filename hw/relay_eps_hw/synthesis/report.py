"""The report of ``relay-eps hw report``: a table, and the same as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from relay_eps_hw.synthesis.designs import FRAME_MODULE, Design, framed, lanes_design, unit_design
from relay_eps_hw.synthesis.nextpnr import Clock, ecp5_clock
from relay_eps_hw.synthesis.yosys import Area, amd_area
from relay_eps_hw.targets import Target

#: Columns of text in files and pipes.
_WIDTH = 120


@dataclass(frozen=True)
class Row:
    """One design's figures; ``ecp5`` is None where it does not fit the device."""

    design: str
    latency: int
    xc7: Area
    xcup: Area
    ecp5: Clock | None


def designs(lanes: int, unit: str | None, depth_sweep: bool) -> list[Design]:
    """What a call of the report measures; raises ValueError for what there is not."""
    if unit is None:
        return [lanes_design(lanes)]
    deepest = unit_design(unit)
    depths = range(1, deepest.latency) if depth_sweep else range(0)
    return [*(unit_design(unit, depth) for depth in depths), deepest]


def measure(wanted: Sequence[Design], seeds: Sequence[int]) -> list[Row]:
    """Synthesise, place and route each design, with a line of progress on stderr.

    Raises RuntimeError where a tool is missing or fails.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        for number, design in enumerate(wanted, 1):
            which = f"{design.name}, {design.latency} clocks" + (f" ({number}/{len(wanted)})" if wanted[1:] else "")
            rows.append(_measure(design, seeds, _shown(progress, task, which)))
    return rows


def _shown(progress: Progress, task: TaskID, which: str) -> Callable[[str], None]:
    return lambda what: progress.update(task, description=f"{which}: {what}")


def _measure(design: Design, seeds: Sequence[int], step: Callable[[str], None]) -> Row:
    with tempfile.TemporaryDirectory(prefix="relay-eps-") as name:
        folder = Path(name)
        step("generating Verilog")
        generic, between_registers = design.verilog(Target.GENERIC), framed(design)
        step("Yosys for xc7")
        xc7 = amd_area(generic, design.module, "xc7", folder)
        step("Yosys for UltraScale+")
        xcup = amd_area(generic, design.module, "xcup", folder)
        ecp5 = ecp5_clock(between_registers, FRAME_MODULE, seeds, folder, step)
    return Row(design.name, design.latency, xc7, xcup, ecp5)


def tables(rows: Sequence[Row]) -> tuple[Table, Table]:
    """The rows as two tables for people: area on AMD devices, and area and clock on ECP5."""
    amd = _table(
        "AMD, by Yosys",
        "Levels: LUTs between registers; where carry chains are passed, LUTs + carry cells.",
        ("design", "clocks", "family", "LUT", "of these RAM", "SRL", "FF", "DSP", "BRAM18", "levels"),
    )
    lattice = _table(
        "Lattice ECP5-85, speed grade 8, after routing",
        "With the registers of the frame around the design.",
        ("design", "clocks", "LUT4", "FF", "MULT18", "EBR", "MHz, median", "of seeds"),
    )
    for row in rows:
        latency = str(row.latency)
        for family, area in (("xc7", row.xc7), ("xcup", row.xcup)):
            amd.add_row(row.design, latency, family, *_area_cells(area))
        cells = ("does not fit",) if row.ecp5 is None else _clock_cells(row.ecp5)
        lattice.add_row(row.design, latency, *cells)
    return amd, lattice


def _area_cells(area: Area) -> tuple[str, ...]:
    numbers = (area.all_luts, area.lut_ram, area.shift_register, area.flip_flop, area.dsp, area.block_ram_18k)
    paths = area.paths
    levels = f"{paths.lut_levels}, {paths.lut_levels_with_carry} + {paths.carry_cells}"
    return (*(f"{number:,}" for number in numbers), levels)


def _clock_cells(clock: Clock) -> tuple[str, ...]:
    numbers = (clock.lut4, clock.flip_flop, clock.multiplier, clock.block_ram)
    seeds = ", ".join(f"{mhz:.0f}" for mhz in clock.mhz)
    return (*(f"{number:,}" for number in numbers), f"{clock.median_mhz:.1f}", seeds)


def _table(title: str, caption: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("design", "family") else "right", no_wrap=True)
    return table


def show(rows: Sequence[Row]) -> None:
    """Print the tables; where the output is no terminal, at their full width."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for table in tables(rows):
        console.print(table)


def to_json(rows: Sequence[Row]) -> str:
    """The figures of all rows, with the sums and medians that the tables show."""
    found = []
    for row in rows:
        plain = asdict(row)
        for family, area in (("xc7", row.xc7), ("xcup", row.xcup)):
            plain[family]["all_luts"] = area.all_luts
        if row.ecp5 is not None:
            plain["ecp5"]["median_mhz"] = row.ecp5.median_mhz
        found.append(plain)
    return json.dumps(found, indent=2) + "\n"
