"""Draws one fold's way through the core, `docs/fold.svg` and `docs/fold-waves.svg`, from a simulation of it.

    python benchmarks/fold_drawing.py

compiles a core of one lane and four ports with waves, which takes minutes, runs a fold of 32 elements in it, and draws
what its signals did. Every clock in the pictures is read from the waves.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relay_eps.fpga.batch import Descriptor, encode
from relay_eps.fpga.interface import Opcode
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.top import core_verilog
from relay_eps_hw.lane.timing import SHALLOW
from relay_eps_sim.core import MemoryModel, SimulatedCore

CONFIG = CoreConfig(lanes=1, ports=4, beat_bytes=8, latency=16)
ELEMENTS, LATENCY = 32, 20
PLACES = {"g": 0x1000, "m": 0x2000, "v": 0x3000}
RECORD_PLACE = 0x400
DOCS = Path(__file__).resolve().parents[1] / "docs"

INK, FAINT, LINE = "#0f172a", "#64748b", "#2563eb"
#: What is drawn over time: a name, and the signal it is read from, by its path in the design.
SHOWN = {
    "start": "core.control.start",
    "descriptor, g: address": "m_axi_port_0_arvalid",
    "descriptor, g: data": "m_axi_port_0_rvalid",
    "enters the pipeline": "core.engine.check.issue",
    "m: address": "m_axi_port_1_arvalid",
    "m: data": "m_axi_port_1_rvalid",
    "v: data": "m_axi_port_2_rvalid",
    "into the lane": "core.engine.lanes.i__valid",
    "out of the lane": "core.engine.lanes.o__valid",
    "m: write address": "m_axi_port_1_awvalid",
    "m: write data": "m_axi_port_1_wvalid",
    "m: response": "m_axi_port_1_bvalid",
    "v: write data": "m_axi_port_2_wvalid",
    "v: response": "m_axi_port_2_bvalid",
    "record: write data": "m_axi_port_0_wvalid",
    "record: response": "m_axi_port_0_bvalid",
    "interrupt": "interrupt",
}
#: The way of the moment m: where it is, and when that is first so.
WAY = (
    ("memory", "address of m goes out", "m_axi_port_1_arvalid"),
    ("port 1", "first beat of m comes", "m_axi_port_1_rvalid"),
    ("queue", "out of the queue", "core.engine.read_m.unpack.i__valid"),
    ("unpack", "a row of one element", "core.engine.read_m.unpack.o__valid"),
    ("lane", "with g and v into the lane", "core.engine.lanes.i__valid"),
    ("collect", "m and v come out", "core.engine.lanes.o__valid"),
    ("pack", "a beat of two elements", "core.engine.write_m.pack.o__valid"),
    ("port 1", "a whole burst waits: address", "m_axi_port_1_awvalid"),
    ("memory", "data is written", "m_axi_port_1_wvalid"),
    ("ledger", "the response", "m_axi_port_1_bvalid"),
    ("recorder", "the record is written", "m_axi_port_0_wvalid"),
    ("host", "interrupt", "interrupt"),
)


def simulate(folder: Path) -> str:
    """The waves of the fold, as a VCD."""
    memory = np.zeros(0x4000, np.uint8)
    scalars = {"scale": 1.0, "b1": 0.9, "c1": 0.1, "b2": 0.999, "c2": 0.001}
    memory[:128] = encode([Descriptor(Opcode.FOLD, ELEMENTS, addresses=PLACES, scalars=scalars)]).ravel()
    waves = folder / "fold.vcd"
    with SimulatedCore(CONFIG, core_verilog(CONFIG, depths=SHALLOW), waves=waves) as sim:
        sim.attach(0, memory)
        sim.configure(MemoryModel(latency=LATENCY))
        sim.start(0, 1, RECORD_PLACE)
        sim.finish(10_000)
    return waves.read_text()


def read_waves(text: str, wanted: Sequence[str]) -> dict[str, list[bool]]:
    """For each path of a signal of one bit, whether it was high at each rising edge of the clock."""
    head, _, body = text.partition("$enddefinitions")
    scopes: list[str] = []
    codes: dict[str, str] = {}
    for line in head.splitlines():
        if match := re.match(r"\s*\$scope \w+ (\S+)", line):
            scopes.append(match[1])
        elif "$upscope" in line:
            scopes.pop()
        elif match := re.match(r"\s*\$var \w+ +1 (\S+) (\S+)", line):
            path = ".".join([*scopes, match[2]])
            for name in (*wanted, "ap_clk"):
                if path == name or path.endswith(f"relay_eps.{name}"):
                    codes.setdefault(name, match[1])
    missing = [name for name in wanted if name not in codes]
    if missing:
        raise RuntimeError(f"the waves have no {', '.join(missing)}")
    values = dict.fromkeys(codes.values(), "0")
    found: dict[str, list[bool]] = {name: [] for name in wanted}
    for line in body.splitlines():
        if line[:1] not in ("0", "1", "x", "z"):
            continue
        code = line[1:]
        if code == codes["ap_clk"] and line[0] == "1" and values[code] == "0":
            for name in wanted:
                found[name].append(values[codes[name]] == "1")
        if code in values:
            values[code] = line[0]
    return found


def draw_waves(waves: Mapping[str, Sequence[bool]], begin: int, end: int) -> str:
    """All signals of `SHOWN` from one clock to another."""
    clock, pitch, high, left, top = 4.4, 26, 14, 170, 44
    width, height = left + clock * (end - begin) + 20, top + pitch * len(SHOWN) + 20
    parts = [_head(width, height)]
    for at in range(0, end - begin, 20):
        x = left + clock * at
        parts.append(f'<path d="M{x:.1f} {top - 8} V{height - 16:.0f}" stroke="#e2e8f0"/>')
        parts.append(_text(x, top - 14, str(at), FAINT, "middle"))
    parts.append(_text(left - 10, top - 14, "clocks since the start", FAINT, "end"))
    for row, (name, signal) in enumerate(SHOWN.items()):
        base = top + pitch * row + high + 4
        points, before = [], None
        for at in range(begin, end):
            y = base - (high if waves[signal][at] else 0)
            x = left + clock * (at - begin)
            if y != before:
                points.append(f"{'M' if before is None else 'L'}{x:.1f} {before if before is not None else y}")
                points.append(f"L{x:.1f} {y}")
            before = y
        points.append(f"L{left + clock * (end - begin):.1f} {before}")
        parts.append(f'<path d="{" ".join(points)}" fill="none" stroke="{LINE}" stroke-width="1.4"/>')
        parts.append(_text(left - 10, base, name, INK, "end"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_way(clocks: Sequence[int]) -> str:
    """The stations of `WAY` with the clock at which the fold first came to each."""
    wide, tall, columns, gap = 210, 84, 4, 34
    rows = -(-len(WAY) // columns)
    width, height = columns * (wide + gap) + 10, rows * (tall + gap) + 10
    parts = [_head(width, height)]
    for number, ((place, what, _), clock) in enumerate(zip(WAY, clocks, strict=True)):
        row, column = divmod(number, columns)
        x, y = 10 + column * (wide + gap), 10 + row * (tall + gap)
        parts.append(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{tall}" rx="6" fill="#eff6ff" stroke="{LINE}"/>'
            + _text(x + 12, y + 26, place, INK, "start", 16)
            + _text(x + 12, y + 48, what, FAINT, "start")
            + _text(x + 12, y + 70, f"clock {clock}", LINE, "start", 14)
        )
        if number + 1 < len(WAY) and column + 1 < columns:
            middle = y + tall / 2
            parts.append(
                f'<path d="M{x + wide + 4} {middle} h{gap - 10} m-7 -5 l7 5 l-7 5" fill="none" stroke="{INK}"/>'
            )
        elif number + 1 < len(WAY):
            bend = y + tall + gap / 2
            parts.append(
                f'<path d="M{x + wide / 2} {y + tall + 3} V{bend} H{10 + wide / 2} V{y + tall + gap - 4} '
                f'm-5 -7 l5 7 l5 -7" fill="none" stroke="{INK}"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>'
    )


def _text(x: float, y: float, text: str, colour: str, anchor: str, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def main() -> None:
    """Draw both pictures."""
    wanted = list(dict.fromkeys([*SHOWN.values(), *(signal for _, _, signal in WAY)]))
    with tempfile.TemporaryDirectory() as folder:
        waves = read_waves(simulate(Path(folder)), wanted)
    begin = waves["core.control.start"].index(True)
    end = waves["interrupt"].index(True) + 6
    clocks, at = [], begin
    for _, _, signal in WAY:
        at = waves[signal].index(True, at)
        clocks.append(at - begin)
    (DOCS / "fold-waves.svg").write_text(draw_waves(waves, begin, end))
    (DOCS / "fold.svg").write_text(draw_way(clocks))
    print(f"{ELEMENTS} elements: {dict(zip((what for _, what, _ in WAY), clocks, strict=True))}")


if __name__ == "__main__":
    main()
