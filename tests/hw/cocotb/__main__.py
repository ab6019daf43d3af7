"""``make sim``: every cocotb bench, with a table of what each has done. WAVES=1 leaves waveforms."""

from __future__ import annotations

import os
import secrets
import sys

from rich.console import Console
from rich.table import Table

from tests.hw.cocotb.benches import BENCHES, ROOT, Outcome, Points, run


def main() -> int:
    """Run the benches named on the command line, or all; the exit status says whether all passed."""
    unknown = set(sys.argv[1:]) - set(BENCHES)
    if unknown:
        print(f"error: there is no bench {', '.join(sorted(unknown))}: use {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    seed = int(os.environ.get("RELAY_EPS_TEST_SEED") or secrets.randbits(31))
    console = Console(width=130)
    console.print(f"replay with RELAY_EPS_TEST_SEED={seed}")
    table = Table(title="cocotb benches under Verilator")
    for heading in ("bench", "test", "result", "vectors", "clocks", "line coverage", "toggle coverage"):
        table.add_column(heading, justify="left" if heading in ("bench", "test", "result") else "right")
    failed = 0
    outcomes = []
    for bench in sys.argv[1:] or BENCHES:
        with console.status(f"building and running {bench}"):
            outcome = run(bench, seed=seed, waves=os.environ.get("WAVES") == "1")
        failed += outcome.failed
        outcomes.append(outcome)
        _add_rows(table, outcome)
    console.print(table)
    for outcome in outcomes:
        waves = f", waveform in {outcome.waves.relative_to(ROOT)}" if outcome.waves else ""
        console.print(f"{outcome.bench}: {outcome.tests} tests, {outcome.seconds:.0f} s with the build{waves}")
    return 1 if failed else 0


def _add_rows(table: Table, outcome: Outcome) -> None:
    for said in outcome.said:
        points = outcome.coverage.get(said.name, outcome.coverage[""])
        result = "[green]passed[/green]" if said.passed else "[red]failed[/red]"
        row = (outcome.bench, said.name, result, f"{said.vectors:,}", f"{said.clocks:,}")
        table.add_row(*row, _share(points, "line"), _share(points, "toggle"))
    if len(outcome.said) < outcome.tests:
        table.add_row(outcome.bench, "", f"[red]{outcome.tests - len(outcome.said)} ended early[/red]", "", "", "", "")
    table.add_section()


def _share(points: Points, kind: str) -> str:
    met, there = getattr(points, f"{kind}_met"), getattr(points, f"{kind}_all")
    return f"{met}/{there} ({met / there:.0%})" if there else "-"


if __name__ == "__main__":
    sys.exit(main())
