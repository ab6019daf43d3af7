"""Every cocotb bench passes, and Verilator's coverage of what it ran is read."""

from __future__ import annotations

import pytest

from tests.hw.cocotb.benches import BENCHES, LANES, UNIT_CASES, Points, coverage, run


# One array of lanes is the short form; `make sim` and the slow tests run both.
@pytest.mark.parametrize(
    "bench", [pytest.param(bench, marks=[pytest.mark.slow] if bench == "lanes_1" else []) for bench in BENCHES]
)
def test_the_bench_passes(bench: str, seed: int):
    outcome = run(bench, seed=seed & 0x7FFF_FFFF)
    assert outcome.failed == 0
    assert all(said.passed for said in outcome.said)
    assert {said.name for said in outcome.said} == ({bench} if bench in LANES else {case.name for case in UNIT_CASES})
    whole = outcome.coverage[""]
    # What is left: bits that no operand can toggle, of formats and scalars that are fixed.
    assert whole.toggle_met > 0.7 * whole.toggle_all
    assert whole.line_met > 0.7 * whole.line_all


def test_coverage_counts_points_that_were_met_in_each_part():
    def point(page: str, where: str, count: int) -> str:
        return f"C '\x01f\x02top.v\x01page\x02{page}\x01o\x02x\x01h\x02{where}' {count}\n"

    text = "# SystemC::Coverage-3\n" + point("v_line/unit", "top.add", 3) + point("v_branch/unit", "top.add", 0)
    text += point("v_toggle/unit", "top", 1) + point("v_toggle/unit", "top.add.inner", 0)
    assert coverage(text) == {"": Points(1, 2, 1, 2), "add": Points(1, 2, 0, 1)}
