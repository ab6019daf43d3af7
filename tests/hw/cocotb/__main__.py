"""``make sim``: every cocotb bench, with a table of what each has done. WAVES=1 leaves waveforms."""

from __future__ import annotations

import os
import secrets
import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.hw.cocotb.benches import BENCHES
from tests.hw.cocotb.runs import ROOT, Outcome, Test, run
from tests.hw.coverage import Points

LEFT = ("bench", "test", "result")
RIGHT = ("vectors", "clocks", "kinds met", "lines", "toggles", "seconds")


def main() -> int:
    """Run the benches named on the command line, or all; the exit status says whether all passed."""
    unknown = set(sys.argv[1:]) - set(BENCHES)
    if unknown:
        print(f"error: there is no bench {', '.join(sorted(unknown))}: use {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    seed = int(os.environ.get("RELAY_EPS_TEST_SEED") or secrets.randbits(31))
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"replay with RELAY_EPS_TEST_SEED={seed}")
    outcomes = []
    for bench in sys.argv[1:] or BENCHES:
        with console.status(f"building and running {bench}"):
            outcomes.append(run(bench, seed=seed, waves=os.environ.get("WAVES") == "1"))
    console.print(table_of(outcomes))
    for outcome in outcomes:
        waves = f", waveform in {outcome.waves.relative_to(ROOT)}" if outcome.waves else ""
        console.print(
            f"{outcome.bench}: built in {outcome.build_seconds:.0f} s, ran in {outcome.run_seconds:.0f} s{waves}"
        )
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    for failure in failures:
        console.print(f"[red]failed[/red] {escape(failure)}", soft_wrap=True)
    return 1 if failures else 0


def table_of(outcomes: list[Outcome]) -> Table:
    """A row a test, and one for each bench as a whole, with the coverage of its design."""
    table = Table(title="cocotb benches under Verilator", title_justify="left")
    for heading in (*LEFT, *RIGHT):
        table.add_column(heading, justify="left" if heading in LEFT else "right", no_wrap=True)
    for outcome in outcomes:
        for test in outcome.tests:
            table.add_row(outcome.bench, *_test_cells(test), *_shares(outcome.coverage.get(test.name)), _seconds(test))
        said = [test.said for test in outcome.tests if test.said]
        vectors, clocks = sum(one.vectors for one in said), sum(one.clocks for one in said)
        whole = _shares(outcome.coverage.get(""))
        cells = ("whole", _result(not outcome.failures), f"{vectors:,}", f"{clocks:,}", "", *whole)
        table.add_row(outcome.bench, *cells, f"{outcome.run_seconds:.1f}", style="bold", end_section=True)
    return table


def _test_cells(test: Test) -> tuple[str, ...]:
    said = test.said
    result = _result(test.failure is None)
    if said is None:
        return test.name, result, "", "", ""
    return test.name, result, f"{said.vectors:,}", f"{said.clocks:,}", _share(said.met, said.kinds)


def _result(passed: bool) -> str:
    return "[green]passed[/green]" if passed else "[red]failed[/red]"


def _seconds(test: Test) -> str:
    return f"{test.seconds:.1f}"


def _shares(points: Points | None) -> tuple[str, str]:
    if points is None:
        return "", ""
    return _share(points.line_met, points.line_all), _share(points.toggle_met, points.toggle_all)


def _share(met: int, there: int) -> str:
    return f"{met}/{there} {met / there:4.0%}" if there else ""


if __name__ == "__main__":
    sys.exit(main())
