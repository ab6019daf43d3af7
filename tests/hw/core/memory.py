"""A memory behind the read channels of AXI4, in Amaranth's simulator; it minds the rules of the bus."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from amaranth.sim import SimulatorContext

from relay_eps_hw.core.axi import CACHE, INCREMENTING, OKAY, SLVERR


def content(address: int, beat_bytes: int) -> int:
    """What lies at an address: a number that no other address has."""
    return (address * 0x9E37_79B9_7F4A_7C15 + 1) % (1 << 8 * beat_bytes)


@dataclass
class ReadMemory:
    """Answers reads in order, each address after ``latency`` clocks at least, with random gaps.

    Attributes:
        bad: addresses of bursts that are answered with an error.
        asked: the bursts that have been asked for: address and beats.
        dead: it takes addresses and never answers.
    """

    beat_bytes: int
    dice: random.Random
    latency: int = 5
    busy: float = 0.0
    bad: frozenset[int] = frozenset()
    dead: bool = False
    asked: list[tuple[int, int]] = field(default_factory=list)

    async def run(self, ctx: SimulatorContext, bus: Any) -> None:
        """The process of the memory."""
        waiting: deque[tuple[int, int, bool, int]] = deque()
        held: tuple[int, int] | None = None
        clock = 0
        while True:
            ctx.set(bus.arready, self.dice.random() >= self.busy)
            offered = bool(waiting) and waiting[0][3] <= clock and not self.dead
            # A beat that was offered stays until it is taken.
            if not ctx.get(bus.rvalid):
                offered &= self.dice.random() >= self.busy
                ctx.set(bus.rvalid, offered)
            if ctx.get(bus.rvalid):
                address, last, is_bad, _ = waiting[0]
                ctx.set(bus.rdata, content(address, self.beat_bytes))
                ctx.set(bus.rresp, SLVERR if is_bad else OKAY)
                ctx.set(bus.rlast, last)
            _, _, arvalid, arready, rvalid, rready, address, beats, size, burst, cache = await ctx.tick().sample(
                *(getattr(bus, name) for name in ("arvalid", "arready", "rvalid", "rready")),
                *(getattr(bus, f"ar{name}") for name in ("addr", "len", "size", "burst", "cache")),
            )
            clock += 1
            if held is not None:
                assert (arvalid, address, beats) == (1, *held), "an address that waits stays as it is"
            held = (address, beats) if arvalid and not arready else None
            if arvalid and arready:
                assert (1 << size, burst, cache) == (self.beat_bytes, INCREMENTING, CACHE)
                assert address // 4096 == (address + (beats + 1) * self.beat_bytes - 1) // 4096
                self.asked.append((address, beats + 1))
                for beat in range(beats + 1):
                    entry = (address + beat * self.beat_bytes, beat == beats, address in self.bad, clock + self.latency)
                    waiting.append(entry)
            if rvalid and rready:
                waiting.popleft()
                ctx.set(bus.rvalid, 0)
