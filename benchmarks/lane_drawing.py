"""Draws the lane's pipeline, `docs/lane.svg`: which unit works on an element in which clock, to scale.

The clocks are asked of the gateware, and a test compares the file with it. `benchmarks/hardware.py --lane-drawing`
draws it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relay_eps_hw.floats.add import Add
from relay_eps_hw.floats.divide import Divide
from relay_eps_hw.floats.multiply import Multiply, Operands, Square
from relay_eps_hw.floats.narrow import Narrow
from relay_eps_hw.floats.root import Root
from relay_eps_hw.floats.widen import Widen
from relay_eps_hw.lane.timing import Timing, lane_timing

#: Pixels: a clock, a row's height and the distance of rows, the margins.
CLOCK = 6.6
HEIGHT = 30
PITCH = 46
LEFT, TOP, RIGHT, BOTTOM = 56, 64, 20, 84
ROWS = 6

INK, FAINT = "#0f172a", "#64748b"
COLOURS = {
    "multiply": "#bfdbfe",
    "add": "#bbf7d0",
    "root": "#fde68a",
    "divide": "#fecaca",
    "convert": "#e2e8f0",
}


@dataclass(frozen=True)
class Unit:
    """A unit from clock ``start`` to ``end``, over the rows ``first`` to ``last``."""

    kind: str
    text: str
    start: int
    end: int
    first: float
    last: float


@dataclass(frozen=True)
class Wait:
    """A value that waits in a row from clock ``start`` to ``end``."""

    text: str
    start: int
    end: int
    row: float


def latencies() -> dict[str, int]:
    """Clocks in each unit of the deep lane, by the names of `Depths`."""
    units = {
        "widen": Widen(),
        "multiply": Multiply(depth=None, kind=Operands.SCALAR),
        "square": Square(depth=None),
        "root_multiply": Multiply(depth=None, kind=Operands.ROOT),
        "add": Add(),
        "add_non_negative": Add(non_negative=True),
        "root": Root(),
        "divide": Divide(positive_divisor=True),
        "narrow": Narrow(),
    }
    return {name: unit.latency for name, unit in units.items()}


def parts(clocks: Mapping[str, int]) -> list[Unit | Wait]:
    """What is drawn. Rows: v and its square above the gradient, m below it, p at the bottom."""
    at = lane_timing(clocks)
    scalar = at.scalars
    v, gs, m = scalar["b2"], scalar["b1"], scalar["b1"]
    multiply, divide = clocks["multiply"], scalar["eps"] + clocks["add_non_negative"]
    return [
        Wait("v", 0, v, 0),
        Unit("multiply", "× b2", v, v + multiply, 0, 0),
        Unit("convert", "widen", 0, scalar["scale"], 2, 2),
        Unit("multiply", "× scale", scalar["scale"], gs, 2, 2),
        Unit("multiply", "square", gs, gs + clocks["square"], 1, 1),
        Unit("multiply", "× c2", v, v + multiply, 1, 1),
        Unit("add", "add", v + multiply, at.v, 0, 1),
        Unit("root", "square root, one bit a step", at.v, scalar["r2"], 0, 1),
        Unit("multiply", "× r2", scalar["r2"], scalar["eps"], 0, 1),
        Unit("add", "+ eps", scalar["eps"], divide, 0, 1),
        Unit("multiply", "× c1", gs, gs + multiply, 3, 3),
        Wait("m", 0, m, 4),
        Unit("multiply", "× b1", m, m + multiply, 4, 4),
        Unit("add", "add", m + multiply, at.m, 3, 4),
        Wait("m′", at.m, divide, 3.5),
        Unit("divide", "divide, one bit a step", divide, scalar["k"], 0, 4),
        Unit("multiply", "× s", scalar["s"], scalar["s"] + multiply, 4, 4),
        Wait("p", 0, scalar["k"], 5),
        Unit("multiply", "× k", scalar["k"], scalar["k"] + multiply, 5, 5),
        Unit("add", "subtract", scalar["k"] + multiply, at.p, 4, 5),
        Unit("convert", "narrow", at.p, at.wire, 4, 5),
    ]


def drawing() -> str:
    """The drawing as SVG."""
    clocks = latencies()
    at = lane_timing(clocks)
    width, height = LEFT + at.wire * CLOCK + RIGHT, TOP + ROWS * PITCH + BOTTOM
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
            f'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12">'
        ),
        f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 22, "One element's way through a lane; every clock takes a new one", "start", INK, 14, bold=True),
        *_axis(at),
    ]
    for part in parts(clocks):
        lines += _wait(part) if isinstance(part, Wait) else _unit(part)
    lines += [*_gradient(clocks), *_outputs(at), "</svg>"]
    return "\n".join(lines) + "\n"


def _x(clock: float) -> float:
    return LEFT + clock * CLOCK


def _y(row: float) -> float:
    """The upper edge of a row."""
    return TOP + row * PITCH


def _text(
    x: float, y: float, text: str, anchor: str = "middle", colour: str = INK, size: int = 12, bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{weight} fill="{colour}">{text}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, width: float = 1.0, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"{dashed}/>'
    )


def _unit(unit: Unit) -> list[str]:
    x, y = _x(unit.start), _y(unit.first)
    width, height = _x(unit.end) - x, _y(unit.last) - y + HEIGHT
    box = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="3" '
        f'fill="{COLOURS[unit.kind]}" stroke="#334155"/>'
    )
    middle = y + height / 2
    if unit.kind != "convert":
        return [box, _text(x + width / 2, middle + 4, unit.text)]
    # Too narrow for their names: above, or upright where the box is tall.
    if unit.first == unit.last:
        return [box, _text(x + width / 2, y - 5, unit.text, size=11)]
    upright = f'<g transform="translate({x + width / 2 + 4:.1f} {middle:.1f}) rotate(-90)">'
    return [box, f"{upright}{_text(0, 0, unit.text)}</g>"]


def _wait(wait: Wait) -> list[str]:
    y = _y(wait.row) + HEIGHT / 2
    label = [] if wait.start else [_text(_x(0) - 8, y + 4, wait.text, "end", bold=True)]
    note = f"{wait.text} waits in RAM, {wait.end - wait.start} clocks"
    if wait.end - wait.start > 30:
        label.append(_text((_x(wait.start) + _x(wait.end)) / 2, y - 5, note, colour=FAINT, size=11))
    return [_line(_x(wait.start), y, _x(wait.end), y, FAINT, 2, "3 3"), *label]


def _gradient(clocks: Mapping[str, int]) -> list[str]:
    """The gradient's name, and its way to the square and to the multiplication for m."""
    x = _x(lane_timing(clocks).scalars["b1"])
    up, down = _y(1) + HEIGHT / 2, _y(3) + HEIGHT / 2
    return [
        _text(_x(0) - 8, _y(2) + HEIGHT / 2 + 4, "g", "end", bold=True),
        _line(x, up, x, _y(2), INK, 1.5),
        _line(x, _y(2) + HEIGHT, x, down, INK, 1.5),
    ]


def _outputs(at: Timing) -> list[str]:
    """Where results leave: v' above, m' below its adder, p' and the wire copy at the right."""
    lines = []
    for clock, y, end, text in (
        (at.v, _y(0), _y(0) - 14, f"v′ out, {at.v}"),
        (at.m, _y(4) + HEIGHT, _y(4) + HEIGHT + 12, f"m′ out, {at.m}"),
        (at.p, _y(5) + HEIGHT, _y(5) + HEIGHT + 12, f"p′ out, {at.p}"),
        (at.wire, _y(4), _y(4) - 14, f"wire out, {at.wire}"),
    ):
        below = end > y
        lines.append(_line(_x(clock), y, _x(clock), end, INK, 1.5))
        anchor, shift = ("end", 4) if clock > at.m + 50 else ("start", -4)
        lines.append(_text(_x(clock) + shift, end + (12 if below else -4), text, anchor, size=11))
    return lines


def _axis(at: Timing) -> list[str]:
    """Clocks, with the scalars at those in which each is sampled."""
    y = _y(ROWS) + 20
    lines = [_line(_x(0), y, _x(at.wire), y, INK)]
    for clock in range(0, at.wire + 1, 20):
        lines += [
            _line(_x(clock), _y(0), _x(clock), y, "#e2e8f0"),
            _line(_x(clock), y, _x(clock), y + 5, INK),
            _text(_x(clock), y + 18, str(clock), size=11),
        ]
    lines.append(_text(_x(0) - 8, y + 18, "clock", "end", FAINT, 11))
    entering: dict[int, list[str]] = {at.w_format: ["format"]}
    for name, clock in at.scalars.items():
        entering.setdefault(clock, []).append(name)
    lines.append(_text(_x(0) - 8, y + 46, "scalar", "end", FAINT, 11))
    for clock, names in sorted(entering.items()):
        lines.append(_text(_x(clock), y + 46, ", ".join(names), size=12, bold=True))
        lines.append(_text(_x(clock), y + 60, f"at {clock}", colour=FAINT, size=11))
    return lines
