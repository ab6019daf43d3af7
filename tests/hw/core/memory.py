"""Memories behind the channels of AXI4, in Amaranth's simulator; they mind the rules of the bus."""

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


@dataclass
class WriteMemory:
    """Takes writes, and answers each burst after ``latency`` clocks at least, in order, with random gaps.

    Attributes:
        bad: addresses of bursts that are answered with an error.
        written: the bytes that were written, by address.
        bursts: what has been written: address and beats.
    """

    beat_bytes: int
    dice: random.Random
    latency: int = 5
    busy: float = 0.0
    bad: frozenset[int] = frozenset()
    written: dict[int, int] = field(default_factory=dict)
    bursts: list[tuple[int, int]] = field(default_factory=list)

    async def run(self, ctx: SimulatorContext, bus: Any) -> None:
        """The process of the memory."""
        addresses: deque[tuple[int, int]] = deque()
        beats: deque[tuple[int, int, int]] = deque()
        answers: deque[tuple[int, int]] = deque()
        held: dict[str, tuple[int, ...] | None] = {"aw": None, "w": None}
        payloads = {"aw": ("addr", "len", "size", "burst", "cache"), "w": ("data", "strb", "last")}
        clock = 0
        while True:
            for channel in held:
                ctx.set(getattr(bus, f"{channel}ready"), self.dice.random() >= self.busy)
            if not ctx.get(bus.bvalid) and answers and answers[0][1] <= clock:
                ctx.set(bus.bvalid, self.dice.random() >= self.busy)
                ctx.set(bus.bresp, SLVERR if answers[0][0] in self.bad else OKAY)
            _, _, *now = await ctx.tick().sample(
                *(getattr(bus, name) for name in ("awvalid", "awready", "wvalid", "wready", "bvalid", "bready")),
                *(getattr(bus, f"{channel}{name}") for channel, names in payloads.items() for name in names),
            )
            clock += 1
            awvalid, awready, wvalid, wready, bvalid, bready = now[:6]
            offers = {"aw": (awvalid, awready, tuple(now[6:11])), "w": (wvalid, wready, tuple(now[11:]))}
            for channel, (valid, ready, payload) in offers.items():
                if held[channel] is not None:
                    assert (valid, payload) == (1, held[channel]), f"{channel} has to stay as it is until it is taken"
                held[channel] = payload if valid and not ready else None
            if awvalid and awready:
                address, length, *fixed = offers["aw"][2]
                assert (1 << fixed[0], *fixed[1:]) == (self.beat_bytes, INCREMENTING, CACHE)
                assert address // 4096 == (address + (length + 1) * self.beat_bytes - 1) // 4096
                addresses.append((address, length + 1))
            if wvalid and wready:
                beats.append(offers["w"][2])
            self._write(addresses, beats, answers, clock)
            if bvalid and bready:
                answers.popleft()
                ctx.set(bus.bvalid, 0)

    def _write(
        self,
        addresses: deque[tuple[int, int]],
        beats: deque[tuple[int, int, int]],
        answers: deque[tuple[int, int]],
        clock: int,
    ) -> None:
        """Write the first burst once its address and all its beats are there."""
        while addresses and len(beats) >= addresses[0][1]:
            address, count = addresses.popleft()
            for beat in range(count):
                data, strobes, last = beats.popleft()
                assert last == (beat == count - 1), "last is on the last beat, and only there"
                for byte in range(self.beat_bytes):
                    if strobes >> byte & 1:
                        self.written[address + beat * self.beat_bytes + byte] = data >> 8 * byte & 0xFF
            self.bursts.append((address, count))
            answers.append((address, clock + self.latency))
