"""A manager of an AXI4-Lite slave, in Amaranth's simulator."""

from __future__ import annotations

import random
from typing import Any

from amaranth.sim import SimulatorContext


class Manager:
    """Writes and reads, one at a time; address, data and the taking of answers come late at random.

    Args:
        bus: the slave's port.
        dice: for the delays; none where it is left out.
    """

    def __init__(self, ctx: SimulatorContext, bus: Any, dice: random.Random | None = None) -> None:
        self._ctx = ctx
        self._bus = bus
        self._dice = dice

    async def write(self, address: int, data: int, strobes: int = 0xF) -> int:
        """The response."""
        ctx, bus = self._ctx, self._bus
        late = {"aw": self._late(), "w": self._late()}
        ctx.set(bus.awaddr, address)
        ctx.set(bus.wdata, data)
        ctx.set(bus.wstrb, strobes)
        open_ = {"aw", "w"}
        clock = 0
        while open_:
            for channel in open_:
                ctx.set(getattr(bus, f"{channel}valid"), clock >= late[channel])
            *_, awready, wready = await ctx.tick().sample(bus.awready, bus.wready)
            ready = {"aw": awready, "w": wready}
            for channel in sorted(open_):
                if ctx.get(getattr(bus, f"{channel}valid")) and ready[channel]:
                    ctx.set(getattr(bus, f"{channel}valid"), 0)
                    open_.remove(channel)
            clock += 1
        return (await self._answer("b", (bus.bresp,)))[0]

    async def read(self, address: int) -> tuple[int, int]:
        """The data, and the response."""
        ctx, bus = self._ctx, self._bus
        for _ in range(self._late()):
            await ctx.tick()
        ctx.set(bus.araddr, address)
        ctx.set(bus.arvalid, 1)
        while True:
            *_, ready = await ctx.tick().sample(bus.arready)
            if ready:
                break
        ctx.set(bus.arvalid, 0)
        data, response = await self._answer("r", (bus.rdata, bus.rresp))
        return data, response

    async def _answer(self, channel: str, signals: tuple[Any, ...]) -> list[int]:
        ctx, bus = self._ctx, self._bus
        for _ in range(self._late()):
            await ctx.tick()
        ready = getattr(bus, f"{channel}ready")
        ctx.set(ready, 1)
        while True:
            _, _, valid, *values = await ctx.tick().sample(getattr(bus, f"{channel}valid"), *signals)
            if valid:
                break
        ctx.set(ready, 0)
        return values

    def _late(self) -> int:
        return self._dice.choice([0, 0, 1, 3]) if self._dice else 0
