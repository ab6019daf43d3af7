"""Verilator's coverage file is read as it is meant."""

from __future__ import annotations

from tests.hw.coverage import Points, read


def test_points_that_were_met_are_counted_in_each_part():
    def point(page: str, where: str, count: int) -> str:
        return f"C '\x01f\x02top.v\x01page\x02{page}\x01o\x02x\x01h\x02{where}' {count}\n"

    text = "# SystemC::Coverage-3\n" + point("v_line/unit", "top.add", 3) + point("v_branch/unit", "top.add", 0)
    text += point("v_toggle/unit", "top", 1) + point("v_toggle/unit", "top.add.inner", 0)
    assert read(text) == {"": Points(1, 2, 1, 2), "add": Points(1, 2, 0, 1)}


def test_a_file_without_points_has_no_parts():
    assert read("# SystemC::Coverage-3\n") == {}
