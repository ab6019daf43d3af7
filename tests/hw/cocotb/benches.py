"""Which cocotb benches there are, what design each has, and what its tests leave for the summary."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring

from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.top import core_verilog
from relay_eps_hw.interface.vendor import KERNEL
from relay_eps_hw.lane.timing import SHALLOW
from relay_eps_hw.verilog import LANE_MODULE, LANES_MODULE, lanes_verilog, module
from tests.hw.floats.cases import CASES

#: Registers in each unit of the bench of units.
DEPTH = 3
UNITS = {case.name: case for case in CASES}
#: The lanes of each bench of lanes.
LANES = {"lanes_1": 1, "lanes_4": 4}
#: The benches of lanes that count coverage inside the lanes too: counting makes each lane's C++ ten megabytes.
COVERED_INSIDE = ("lanes_1",)
#: The core of the bench of one; the time within which a slave must answer is short.
CORE = CoreConfig(lanes=2, ports=2, beat_bytes=8, timeout=1 << 14)
BENCHES = ("units", *LANES, "core")
#: Benches of a large design and few clocks: compiled without coverage and optimisation, which would take minutes.
BRIEF = ("core",)

#: Inside a simulation: which bench it is, and its seed.
BENCH = os.environ.get("RELAY_EPS_BENCH", "")
SEED = int(os.environ.get("RELAY_EPS_TEST_SEED") or 0)
#: The file, in the bench's folder, that collects what its tests say.
SAID = "said.jsonl"

_GUARD = re.compile(r"^(\s*if \(\\\$auto\$verilog_backend\S* \) begin end)$", re.MULTILINE)


@dataclass(frozen=True)
class Said:
    """What a test says: what it sent, in how many clocks, and how many of the kinds of vectors there are it has met.

    ``name`` is the test's, or the unit's where a test runs for several. ``kinds`` is 0 where they are not counted.
    """

    name: str
    vectors: int
    clocks: int
    met: int = 0
    kinds: int = 0


def say(said: Said) -> None:
    """Called in a simulation: leave a line about a test for the summary."""
    with open(SAID, "a") as file:
        file.write(json.dumps(asdict(said)) + "\n")


def design(bench: str) -> tuple[str, str]:
    """The name of the top module of a bench, and its Verilog."""
    if bench == "core":
        return KERNEL, core_verilog(CORE, depths=SHALLOW)
    if bench not in LANES:
        return "units", _without_guards_covered(module(_SideBySide(), "units"))
    around, head, lane = lanes_verilog(LANES[bench], depths=SHALLOW).partition(f"module {LANE_MODULE}(")
    if bench in COVERED_INSIDE:
        lane = _without_guards_covered(lane)
    else:
        head = f"/* verilator coverage_off */ {head}"
    return LANES_MODULE, f"{_without_guards_covered(around)}{head}{lane}"


def _without_guards_covered(verilog: str) -> str:
    """Yosys begins each process with an `if` of a constant 0, which is no branch of the design's."""
    return _GUARD.sub(r"/* verilator coverage_off */\1/* verilator coverage_on */", verilog)


class _SideBySide(wiring.Component):
    """All units in one design, so that Verilator's own library is compiled once."""

    def __init__(self) -> None:
        self._units = {name: case.make(DEPTH, None) for name, case in UNITS.items()}
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
