"""The report of ``relay-eps hw report``: a table, and the same as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from relay_eps_hw.synthesis.designs import Design, bare, framed, lanes_design, unit_design
from relay_eps_hw.synthesis.tools import Area, Clock, amd_area, ecp5_clock


@dataclass(frozen=True)
class Row:
    """One design's figures."""

    design: str
    latency: int
    xc7: Area
    xcup: Area
    ecp5: Clock


def designs(lanes: int, unit: str | None, depth_sweep: bool) -> Iterator[Design]:
    """What a call of the report measures; raises ValueError for what there is not."""
    if unit is None:
        yield lanes_design(lanes)
        return
    deepest = unit_design(unit)
    if depth_sweep:
        yield from (unit_design(unit, depth) for depth in range(1, deepest.latency))
    yield deepest


def measure(*, lanes: int, unit: str | None, depth_sweep: bool, seeds: int) -> list[Row]:
    """Synthesise, place and route everything, with a line of progress on stderr."""
    wanted = list(designs(lanes, unit, depth_sweep))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        for design in wanted:

            def step(what: str, design: Design = design) -> None:
                progress.update(task, description=f"{design.name}: {what}")

            # Not under /tmp: the tools, which are WebAssembly, have another there.
            with tempfile.TemporaryDirectory(prefix=".relay-eps-", dir=Path.cwd()) as name:
                folder = Path(name)
                step("generating")
                alone, between_registers = bare(design), framed(design)
                step("area on xc7")
                xc7 = amd_area(alone, "xc7", folder)
                step("area on UltraScale+")
                xcup = amd_area(alone, "xcup", folder)
                step(f"placing and routing on ECP5, {seeds} seeds")
                ecp5 = ecp5_clock(between_registers, range(1, seeds + 1), folder)
            rows.append(Row(design.name, design.latency, xc7, xcup, ecp5))
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    table = Table(title="Area, and clock on ECP5-85 speed 8 (after routing)")
    headings = (
        "design",
        "clocks",
        "xc7 LUT",
        "DSP",
        "BRAM18",
        "FF",
        "LUT levels",
        "US+ LUT",
        "levels",
        "ECP5 LUT4",
        "FF",
    )
    for heading in (*headings, "MULT18", "MHz (median)", "range"):
        table.add_column(heading, justify="left" if heading == "design" else "right")
    for row in rows:
        xc7, xcup, ecp5 = row.xc7, row.xcup, row.ecp5
        table.add_row(
            row.design,
            str(row.latency),
            f"{xc7.all_luts:,}",
            str(xc7.dsp),
            str(xc7.block_ram_18k),
            f"{xc7.flip_flop:,}",
            str(xc7.lut_levels),
            f"{xcup.all_luts:,}",
            str(xcup.lut_levels),
            f"{ecp5.lut4:,}",
            f"{ecp5.flip_flop:,}",
            str(ecp5.multiplier),
            f"{median(ecp5.mhz):.0f}",
            f"{min(ecp5.mhz):.0f} to {max(ecp5.mhz):.0f}",
        )
    Console(width=150).print(table)


def to_json(rows: Sequence[Row]) -> str:
    """The figures of all rows."""
    return json.dumps([asdict(row) | {"xc7_all_luts": row.xc7.all_luts} for row in rows], indent=2) + "\n"
