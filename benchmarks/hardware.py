"""What depth buys: area and clock of the float units, from few registers to many; and the pictures of docs/hardware.md.

Measures as `relay-eps hw report` does, at some depths of some units, or reads what that command has written. Placed and
routed for a Lattice ECP5-85, speed grade 8; the clock is the median of the seeds. Half a minute a depth and seed.

    python benchmarks/hardware.py
    python benchmarks/hardware.py --depths 6 --seeds 3 --json sweep.json
    python benchmarks/hardware.py --read sweep.json --plot docs/depth.svg
    python benchmarks/hardware.py --read add.json divide.json --plot depth.svg
    python benchmarks/hardware.py --lane-drawing docs/lane.svg
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.lane_drawing import drawing
from benchmarks.table import print_table
from relay_eps_hw.synthesis.designs import UNITS, unit_design
from relay_eps_hw.synthesis.report import measure, to_json

Rows = list[dict[str, Any]]

DRAWN = ("add", "scalar_multiply", "root", "divide")
#: Units have a colour each, tellable apart with any colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#a07800", "#56749c", "#7a4f2a", "#555555", "#c0392b", "#117a8b")


def some_depths(deepest: int, count: int) -> list[int]:
    """At most ``count`` depths from 1 to ``deepest``, both included, about equally far apart in ratio."""
    if count == 1:
        return [deepest]
    return sorted({round(deepest ** (step / (count - 1))) for step in range(count)})


def sweep(units: Sequence[str], depths: int, seeds: int) -> Rows:
    """Measure ``depths`` depths of each unit."""
    chosen = [unit_design(name, depth) for name in units for depth in some_depths(unit_design(name).latency, depths)]
    found: Rows = json.loads(to_json(measure(chosen, range(1, seeds + 1))))
    return found


def read(files: Sequence[Path]) -> Rows:
    """The rows of reports, all together."""
    return [row for file in files for row in json.loads(file.read_text())]


def report(rows: Rows) -> None:
    """Print the table."""
    print_table(
        "Depth, area and clock: xc7 and UltraScale+ by Yosys, ECP5-85 speed 8 after routing",
        ("unit", "depth", "MHz, median", "LUT4", "FF", "xc7 LUT", "LUT levels", "carry cells", "US+ LUT", "LUT levels"),
        [
            (
                row["design"],
                f"{row['latency']}",
                *_ecp5(row),
                f"{row['xc7']['all_luts']:,}",
                _levels(row["xc7"]),
                f"{row['xc7']['paths']['carry_cells']}",
                f"{row['xcup']['all_luts']:,}",
                _levels(row["xcup"]),
            )
            for row in rows
        ],
    )


def _ecp5(row: dict[str, Any]) -> tuple[str, str, str]:
    found = row["ecp5"]
    if found is None:
        return "does not fit", "", ""
    return f"{found['median_mhz']:.1f}", f"{found['lut4']:,}", f"{found['flip_flop']:,}"


def _levels(area: dict[str, Any]) -> str:
    paths = area["paths"]
    return f"{max(paths['lut_levels'], paths['lut_levels_with_carry'])}"


def plot(rows: Rows, file: Path) -> None:
    """Draw clock and area over depth, a line a unit; the same bytes for the same figures."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "relay-eps", "svg.fonttype": "none", "font.size": 11})
    figure = Figure(figsize=(9, 6.6), layout="constrained")
    clock, area = figure.subplots(2, 1, sharex=True)
    placed = [row for row in rows if row["ecp5"] is not None]
    for colour, (name, of_unit) in zip(COLOURS, groupby(placed, key=lambda row: row["design"]), strict=False):
        _draw_unit(clock, area, name.replace("_", " "), sorted(of_unit, key=lambda row: row["latency"]), colour)
    clock.set(ylabel="MHz on ECP5-85, speed 8", title="What depth buys, and what it costs", ylim=(0, None))
    clock.legend(frameon=False, loc="lower right")
    area.set(ylabel="cells, those of the frame included", xlabel="depth: registers between operands and result")
    # Room for the legend above every line.
    area.set_ylim(0, 1.25 * area.get_ylim()[1])
    area.set_xscale("log", base=2)
    area.xaxis.set_major_formatter("{x:.0f}")
    area.plot([], [], color="#475569", label="LUT4, carry included")
    area.plot([], [], color="#475569", linestyle="--", label="flip-flops")
    area.legend(frameon=False, loc="upper left", ncols=2)
    for axes in (clock, area):
        axes.grid(color="#e2e8f0")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


def _draw_unit(clock: Any, area: Any, name: str, rows: Rows, colour: str) -> None:
    depths = [row["latency"] for row in rows]
    median = [row["ecp5"]["median_mhz"] for row in rows]
    below = [middle - min(row["ecp5"]["mhz"]) for middle, row in zip(median, rows, strict=True)]
    above = [max(row["ecp5"]["mhz"]) - middle for middle, row in zip(median, rows, strict=True)]
    line = {"color": colour, "marker": "o", "markersize": 4}
    clock.errorbar(depths, median, yerr=(below, above), capsize=3, label=name, **line)
    area.plot(depths, [row["ecp5"]["lut4"] for row in rows], **line)
    area.plot(depths, [row["ecp5"]["flip_flop"] for row in rows], linestyle="--", **line)


def main() -> None:
    """Measure or read, print, and draw what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", nargs="+", choices=list(UNITS), default=DRAWN, metavar="UNIT")
    parser.add_argument("--depths", type=int, default=3, help="how many depths of each unit")
    parser.add_argument("--seeds", type=int, default=1, help="placements of each")
    parser.add_argument("--read", type=Path, nargs="+", help="do not measure: take these reports", metavar="FILE")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw them here, as SVG")
    parser.add_argument("--lane-drawing", type=Path, help="only draw the lane's pipeline here, as SVG")
    options = parser.parse_args()
    # Amaranth minds components that are only asked for their ports.
    warnings.filterwarnings("ignore", ".* created but never used")
    if options.lane_drawing is not None:
        options.lane_drawing.write_text(drawing())
        return
    rows = read(options.read) if options.read else sweep(options.units, options.depths, options.seeds)
    report(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    if options.plot is not None:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
