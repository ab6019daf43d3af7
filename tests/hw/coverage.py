"""Verilator's line and toggle coverage, read from the file that a simulation leaves."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_POINT = re.compile(r"^C '(.*)' (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Points:
    """Points of coverage in one part of a design: those met, and all there are."""

    line_met: int
    line_all: int
    toggle_met: int
    toggle_all: int


def read(text: str) -> dict[str, Points]:
    """The points of each part of a design, and of the whole as "".

    A line of the file is ``C 'key value key value...' count``, with \\x01 before each key and \\x02 before each value.
    ``page`` names the kind, ``h`` the hierarchy where the point lies: a part is what stands right below the top.
    Branches are counted with the lines; a toggle is two points, one for each direction.
    """
    count: Counter[tuple[str, str, bool]] = Counter()
    for description, number in _POINT.findall(text):
        fields = dict(part.split("\x02", 1) for part in description.split("\x01") if "\x02" in part)
        kind = "toggle" if fields["page"].startswith("v_toggle") else "line"
        below_top = fields.get("h", "").split(".")[1:2]
        for part in {"", *below_top}:
            count[part, kind, int(number) > 0] += 1
    return {
        part: Points(
            line_met=count[part, "line", True],
            line_all=count[part, "line", True] + count[part, "line", False],
            toggle_met=count[part, "toggle", True],
            toggle_all=count[part, "toggle", True] + count[part, "toggle", False],
        )
        for part in sorted({part for part, _, _ in count})
    }
