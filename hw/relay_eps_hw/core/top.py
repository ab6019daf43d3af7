"""The core under the names that the vendors' tools expect, and its Verilog."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.control import ADDRESS_BITS
from relay_eps_hw.core.core import Core
from relay_eps_hw.faults import Faults
from relay_eps_hw.interface.vendor import KERNEL, SLAVE, port_name
from relay_eps_hw.lane.lane import Lane
from relay_eps_hw.lane.timing import DEEP, Depths
from relay_eps_hw.targets import Target
from relay_eps_hw.verilog import LANE_MODULE, LaneInstance, module


class Top(wiring.Component):
    """The core with its clock and reset: ``ap_clk``, and ``ap_rst_n``, low and synchronous.

    Ports: those of ``s_axi_control``, of each ``m_axi_port_k``, and ``interrupt``; each signal by the bus's name, an
    underscore and its own.
    """

    def __init__(self, config: CoreConfig, lane: Any, *, faults: Faults | None = None) -> None:
        self._core = Core(config, lane, faults=faults)
        bits = config.shape.beat_bits
        ports: dict[str, wiring.Member] = {"ap_clk": In(1), "ap_rst_n": In(1), "interrupt": Out(1)}
        for name, member in axi.lite(ADDRESS_BITS).members.items():
            ports[f"{SLAVE}_{name}"] = member.flip()
        for number in range(config.ports):
            for half in (axi.write(bits), axi.read(bits)):
                ports |= {f"{port_name(number)}_{name}": member for name, member in half.members.items()}
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains.sync = domain = ClockDomain()
        domain.clk = self.ap_clk
        m.d.comb += domain.rst.eq(~self.ap_rst_n)
        m.submodules.core = core = self._core
        m.d.comb += self.interrupt.eq(core.interrupt)
        self._join(m, SLAVE, core.control)
        for number in range(len(core.reads)):
            self._join(m, port_name(number), core.reads[number])
            self._join(m, port_name(number), core.writes[number])
        return m

    def _join(self, m: Module, prefix: str, bus: wiring.PureInterface) -> None:
        """Connect each signal of ``bus`` with the port of its name."""
        for name in bus.signature.members:
            outer: Signal = getattr(self, f"{prefix}_{name}")
            inner: Signal = getattr(bus, name)
            is_output = self.signature.members[f"{prefix}_{name}"].flow is Out
            m.d.comb += outer.eq(inner) if is_output else inner.eq(outer)


def core_verilog(
    config: CoreConfig, *, depths: Depths = DEEP, target: Target = Target.GENERIC, faults: Faults | None = None
) -> str:
    """The Verilog of a core: the module ``relay_eps`` and, under it, ``relay_eps_lane``.

    With ``faults`` there is one more input, ``fault``. The text is the same in every run and from every folder.

    Raises ValueError for a depth that is not supported.
    """
    lane = Lane(depths, target=target, faults=faults)
    top = Top(config, lambda: LaneInstance(lane), faults=faults)
    return "\n".join(module(component, name, faults) for component, name in ((top, KERNEL), (lane, LANE_MODULE)))
