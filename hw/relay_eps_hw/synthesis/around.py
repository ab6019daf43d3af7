"""The core without its lanes, and what is around lanes, to see what control and movers cost."""

from __future__ import annotations

from amaranth.lib.wiring import In

from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.top import Top
from relay_eps_hw.interface.vendor import KERNEL
from relay_eps_hw.lane.lane import Lane
from relay_eps_hw.lane.lanes import Lanes
from relay_eps_hw.lane.timing import DEEP
from relay_eps_hw.verilog import LANE_MODULE, LANES_MODULE, LaneInstance, module


def around_lanes(config: CoreConfig) -> str:
    """The Verilog of a core whose lanes are black boxes; the buffer of their results is still there."""
    return _black_box() + module(Top(config, lambda: LaneInstance(Lane(DEEP))), KERNEL)


def buffer_of_lanes(lanes: int) -> str:
    """The Verilog of what is around that many black boxes in `Lanes`: the buffer of their results."""
    return _black_box() + module(Lanes(lanes, lambda: LaneInstance(Lane(DEEP))), LANES_MODULE)


def _black_box() -> str:
    lane = Lane(DEEP)
    ports = ["input clk", "input rst"]
    for name, member in lane.signature.members.items():
        direction = "input" if member.flow is In else "output"
        ports.append(f"{direction} [{len(getattr(lane, name)) - 1}:0] {name}")
    return f"(* blackbox *) module {LANE_MODULE}({', '.join(ports)}); endmodule\n"
