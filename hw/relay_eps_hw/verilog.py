"""The Verilog of the lanes: one lane converted once, and the array around N instances of it.

Converting sixteen lanes in place would take Amaranth a minute, and every tool after it as much again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from amaranth._toolchain.yosys import find_yosys
from amaranth.back import rtlil
from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from relay_eps_hw.faults import Faults
from relay_eps_hw.lane.beat import lane_ports
from relay_eps_hw.lane.lane import Lane
from relay_eps_hw.lane.lanes import Lanes
from relay_eps_hw.lane.timing import DEEP, Depths
from relay_eps_hw.rtlil import equal_widths
from relay_eps_hw.targets import Target

LANES_MODULE = "relay_eps_lanes"
LANE_MODULE = "relay_eps_lane"


class LaneInstance(wiring.Component):
    """A lane that stands in a Verilog module of its own, called `LANE_MODULE`."""

    def __init__(self, lane: Lane) -> None:
        self.fmt = lane.fmt
        self.timing = lane.timing
        self.faults = lane.faults
        super().__init__(lane_ports(lane.fmt.width))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        ports: dict[str, Any] = {
            f"{'i' if member.flow is In else 'o'}_{name}": getattr(self, name)
            for name, member in self.signature.members.items()
        }
        if self.faults is not None:
            ports["i_fault"] = self.faults.select
        m.submodules.lane = Instance(LANE_MODULE, i_clk=ClockSignal(), i_rst=ResetSignal(), **ports)
        return m


def lanes_verilog(
    lanes: int, *, depths: Depths = DEEP, target: Target = Target.GENERIC, faults: Faults | None = None
) -> str:
    """The Verilog of `Lanes`: the module ``relay_eps_lanes`` and, under it, ``relay_eps_lane``.

    Ports are clk, rst (active high, synchronous), ``i__payload``, ``i__valid``, ``i__ready`` and the same for ``o``;
    a comment at the head of the text says where the fields of the payloads lie. With ``faults`` there is one more
    input, ``fault``. The text is the same in every run and from every folder.

    Raises ValueError for a number of lanes, or a depth, that is not supported.
    """
    lane = Lane(depths, target=target, faults=faults)
    array = Lanes(lanes, lambda: LaneInstance(lane), faults=faults)
    texts = (module(component, name, faults) for component, name in ((array, LANES_MODULE), (lane, LANE_MODULE)))
    return "\n".join([_payloads(array), *texts])


# As Amaranth's own conversion to Verilog, which leaves no room for a change between.
_SCRIPT = """
read_rtlil <<rtlil
{rtlil}
rtlil
proc -nomux -norom
memory_collect
attrmap {attributes}
attrmap -modattr {attributes}
write_verilog -norename
"""
_ATTRIBUTES = " ".join(
    f"-remove {name}" for name in ("generator", "top", "src", "amaranth.hierarchy", "amaranth.decoding")
)


def module(component: Any, name: str, faults: Faults | None = None) -> str:
    """The Verilog of ``component`` as the module ``name``, with its own ports, and ``fault`` where there are faults."""
    ports = [port for _, _, port in component.signature.flatten(component)]
    return convert(component, name, ports if faults is None else [*ports, faults.select])


def convert(component: Any, name: str, ports: Sequence[Any]) -> str:
    """The Verilog of ``component`` as the module ``name``, with these ports, without source locations."""
    values = [getattr(port, "as_value", lambda port=port: port)() for port in ports]
    text = rtlil.convert(component, name=name, ports=values, emit_src=False)
    yosys = find_yosys(lambda version: version >= (0, 40))
    # Yosys warns that not all processes become Verilog; Amaranth's all do.
    script = _SCRIPT.format(rtlil=equal_widths(text), attributes=_ATTRIBUTES)
    return _whole_cases(_initial_statements(yosys.run(["-q", "-"], script, ignore_warnings=True)))


_REGISTER = re.compile(r"^( *)reg (\[\d+:\d+\] |)(\\\S+ |\w+) (= [^;\n]+;)$", re.MULTILINE)


def _initial_statements(verilog: str) -> str:
    """Initial values as statements: linters take one in a declaration, beside a process, for two drivers."""
    return _REGISTER.sub(r"\1reg \2\3;\n\1initial \3 \4", verilog)


_CASE = re.compile(r"^ *(?:(?P<begin>casez? \()|(?P<default>default:)|(?P<end>endcase))")


def _whole_cases(verilog: str) -> str:
    """Every case statement with a default: what it leaves out keeps the value that it was given before."""
    lines: list[str] = []
    has_default: list[bool] = []
    for line in verilog.splitlines(keepends=True):
        found = _CASE.match(line)
        if found and found["begin"]:
            has_default.append(False)
        elif found and found["default"]:
            has_default[-1] = True
        elif found and not has_default.pop():
            lines.append(line.replace("endcase\n", "  default:\n", 1))
            lines.append(line.replace("endcase\n", "      /* empty */;\n", 1))
        lines.append(line)
    return "".join(lines)


def fields(layout: data.Layout) -> dict[str, tuple[int, int]]:
    """Where each field of a beat lies: its lowest bit and its width, by a dotted name such as ``elements.0.g``."""
    places: dict[str, tuple[int, int]] = {}
    for key, field in layout:
        if isinstance(field.shape, data.Layout):
            for name, (offset, width) in fields(field.shape).items():
                places[f"{key}.{name}"] = (field.offset + offset, width)
        else:
            places[str(key)] = (field.offset, field.width)
    return places


def _payloads(array: Lanes) -> str:
    lanes = len(array.i.payload.mask)
    some = f"{lanes} AdamA lane{'s' if lanes > 1 else ''}"
    lines = [f"// {LANES_MODULE}: {some}, {array.latency} clocks deep. Payloads:"]
    for stream in ("i", "o"):
        layout = getattr(array, stream).payload.shape()
        lines += [
            f"//   {stream}__payload[{offset + width - 1}:{offset}] {name}"
            for name, (offset, width) in fields(layout).items()
        ]
    return "\n".join(lines)
