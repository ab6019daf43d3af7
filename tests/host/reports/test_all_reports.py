"""Every report that this project answers has a test of its name, or a line that says why not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
DECISIONS = HERE.parents[2] / "docs" / "decisions.md"

#: The reports about the host library, numbered as in the test files' headings.
REPORTS = frozenset(range(1, 44))


def reports_tested() -> set[int]:
    """Numbers of the reports that a test is named after; a name may carry several."""
    found: set[int] = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (name := re.match(r"test_((?:H\d+_)+)", node.name)):
                found.update(int(number) for number in re.findall(r"H(\d+)_", name.group(1)))
    return found


def reports_explained() -> dict[int, str]:
    """The lines of the decisions that begin with a report's number."""
    text = DECISIONS.read_text().partition("\n## Reports without a test\n")[2].partition("\n## ")[0]
    return {int(number): line for number, line in re.findall(r"^- \*\*H(\d+)\*\*(.*)$", text, re.MULTILINE)}


def test_every_report_has_a_test_of_its_name_or_a_line_that_says_why_not() -> None:
    missing = REPORTS - reports_tested() - reports_explained().keys()
    assert not missing, f"neither tested nor explained: {', '.join(f'H{n}' for n in sorted(missing))}"


def test_no_test_and_no_line_is_about_a_report_that_is_not_in_the_list() -> None:
    unknown = (reports_tested() | reports_explained().keys()) - REPORTS
    assert not unknown, f"there is no report {', '.join(f'H{n}' for n in sorted(unknown))}"


def test_every_file_names_the_reports_that_it_tests() -> None:
    for path in HERE.glob("test_*.py"):
        tree = ast.parse(path.read_text())
        heading = ast.get_docstring(tree) or ""
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                for number in re.findall(r"H(\d+)_", node.name):
                    assert f"H{number}" in heading, f"{path.name} tests H{number} and does not say what it is"
