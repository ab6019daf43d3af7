"""The core with block RAM for its memory: what fits on an ECP5 board without DRAM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.block_ram import BlockRam
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.control import ADDRESS_BITS
from relay_eps_hw.core.core import Core
from relay_eps_hw.faults import Faults


class SmallTop(wiring.Component):
    """A core on block RAM, in the default clock domain. The host comes to both by words: a UART, for instance.

    Ports:
        control (in, AXI4-Lite): the core's registers.
        row, write, data, out: the memory, as `BlockRam` has them.
        interrupt (out, 1).

    Args:
        config: with one port; ValueError otherwise.
        lane: makes one lane, as for `Lanes`.
        memory_bytes: a power of two.
    """

    def __init__(
        self, config: CoreConfig, lane: Callable[[], Any], memory_bytes: int, *, faults: Faults | None = None
    ) -> None:
        if config.ports != 1:
            raise ValueError(f"block RAM has one port for the core, not {config.ports}: use ports=1")
        self.memory = BlockRam(config.shape, memory_bytes // config.beat_bytes)
        self._core = Core(config, lane, faults=faults)
        memory = self.memory.signature.members
        super().__init__(
            {"control": In(axi.lite(ADDRESS_BITS)), "interrupt": Out(1)}
            | {name: memory[name] for name in ("row", "write", "data", "out")}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = self._core
        m.submodules.memory = memory = self.memory
        wiring.connect(m, wiring.flipped(self.control), core.control)
        wiring.connect(m, core.reads[0], memory.reads)
        wiring.connect(m, core.writes[0], memory.writes)
        m.d.comb += [
            self.interrupt.eq(core.interrupt),
            self.out.eq(memory.out),
            *(getattr(memory, name).eq(getattr(self, name)) for name in ("row", "write", "data")),
        ]
        return m
