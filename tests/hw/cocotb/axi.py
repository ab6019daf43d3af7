"""AXI around a core under cocotb: cocotbext-axi's slaves with one memory, its master at the registers, a watch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cocotb.triggers import RisingEdge
from cocotb.types import LogicArray
from cocotbext.axi import (
    AxiARBus,
    AxiAWBus,
    AxiBBus,
    AxiBus,
    AxiLiteBus,
    AxiLiteMaster,
    AxiRBus,
    AxiReadBus,
    AxiSlave,
    AxiWBus,
    AxiWriteBus,
)
from numpy.typing import NDArray

from relay_eps_hw.interface.registers import REGISTERS
from relay_eps_hw.interface.vendor import SLAVE, port_name

#: By channel: the bus, and whether the core sends on it.
CHANNELS = {"aw": (AxiAWBus, True), "w": (AxiWBus, True), "b": (AxiBBus, False)}
CHANNELS |= {"ar": (AxiARBus, True), "r": (AxiRBus, False)}


def pauses(dice: random.Random) -> Iterator[bool]:
    """Clocks in which a channel rests, forever: mostly a few, now and then many."""
    while True:
        yield from [False] * dice.choice((1, 2, 5, 40))
        yield from [True] * dice.choice((0, 1, 1, 2, 3, 30))


class _NoSignal:
    """In the place of a bus's ID, which cocotbext-axi needs and the core does not have."""

    value = LogicArray("0")

    def __len__(self) -> int:
        return 1

    def setimmediatevalue(self, value: object) -> None:
        """Nobody is told."""


def _bus(dut: Any, port: int) -> AxiBus:
    buses = {}
    for channel, (kind, _) in CHANNELS.items():
        name = f"{channel}id"
        there: Any = type(kind.__name__, (kind,), {"_signals": [signal for signal in kind._signals if signal != name]})
        buses[channel] = there.from_prefix(dut, port_name(port))
        setattr(buses[channel], name, _NoSignal())
    write = AxiWriteBus.from_channels(buses["aw"], buses["w"], buses["b"])
    return AxiBus(write, AxiReadBus.from_channels(buses["ar"], buses["r"]))


@dataclass
class Memory:
    """An image at the address ``base``, which ports share.

    Attributes:
        errors: port, direction and address of each place that is answered with an error; its beat is not written.
        failed: how often they were.
        strays: accesses where there is no memory, in words.
    """

    base: int
    image: NDArray[np.uint8]
    errors: set[tuple[int, str, int]] = field(default_factory=set)
    failed: int = 0
    strays: list[str] = field(default_factory=list)

    def place(self, port: int, direction: str, address: int, size: int) -> NDArray[np.uint8]:
        """A view of some bytes; OSError, which cocotbext-axi makes an error of the slave's, where there are none."""
        if any((port, direction, wrong) in self.errors for wrong in range(address, address + size)):
            self.failed += 1
            raise OSError(f"{address:#x} was to fail")
        at = address - self.base
        if not 0 <= at <= len(self.image) - size:
            self.strays.append(f"port {port}: {direction} of {size} bytes at {address:#x}, which is no memory")
            raise OSError(self.strays[-1])
        return self.image[at : at + size]


@dataclass(frozen=True)
class _Target:
    """A memory as the slave of one port wants it."""

    memory: Memory
    port: int

    async def read(self, address: int, size: int) -> bytes:
        return self.memory.place(self.port, "read", address, size).tobytes()

    async def write(self, address: int, data: bytes) -> None:
        self.memory.place(self.port, "write", address, len(data))[:] = np.frombuffer(data, np.uint8)


def serve(dut: Any, port: int, memory: Memory, dice: random.Random) -> AxiSlave:
    """A slave at a port, each of whose channels rests at random."""
    slave = AxiSlave(_bus(dut, port), dut.ap_clk, target=_Target(memory, port))
    for half, channels in ((slave.write_if, ("aw", "w", "b")), (slave.read_if, ("ar", "r"))):
        for channel in channels:
            seed = dice.getrandbits(32)
            getattr(half, f"{channel}_channel").set_pause_generator(pauses(random.Random(seed)))
    return slave


class Registers:
    """The registers through cocotbext-axi's master, each of whose channels rests at random."""

    def __init__(self, dut: Any, dice: random.Random) -> None:
        self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, SLAVE), dut.ap_clk)
        for half, channels in ((self.master.write_if, ("aw", "w", "b")), (self.master.read_if, ("ar", "r"))):
            for channel in channels:
                seed = dice.getrandbits(32)
                getattr(half, f"{channel}_channel").set_pause_generator(pauses(random.Random(seed)))

    async def read(self, address: int, size: int) -> bytes:
        """Bytes, one word after another."""
        answer = await self.master.read(address, size)
        assert answer.resp == 0, f"{address:#x} is answered with {answer.resp}"
        return bytes(answer.data)

    async def write(self, address: int, data: bytes) -> None:
        """The same; where they begin or end within a word, by its strobes."""
        answer = await self.master.write(address, data)
        assert answer.resp == 0, f"{address:#x} is answered with {answer.resp}"

    @staticmethod
    def place(name: str) -> slice:
        """Where the bytes of a register lie."""
        return slice(REGISTERS[name].offset, REGISTERS[name].end)

    async def get(self, name: str) -> int:
        """A register by its name."""
        place = self.place(name)
        return int.from_bytes(await self.read(place.start, place.stop - place.start), "little")

    async def set(self, name: str, value: int) -> None:
        """The same."""
        place = self.place(name)
        await self.write(place.start, value.to_bytes(place.stop - place.start, "little"))


class Watch:
    """Every clock of the ports' channels: what is offered must stay as it is until it is taken.

    Attributes:
        met: (port, channel, "moves") where something went over, (port, channel, "waits") where one side waited.
        breaches: in words.
    """

    def __init__(self, dut: Any, ports: int) -> None:
        self.met: set[tuple[int, str, str]] = set()
        self.breaches: list[str] = []
        self._clock = RisingEdge(dut.ap_clk)
        self._channels = [
            (port, name, sends, *(getattr(dut, f"{port_name(port)}_{name}{end}") for end in ("valid", "ready")))
            for port in range(ports)
            for name, (_, sends) in CHANNELS.items()
        ]
        self._payloads = {
            (port, name): [getattr(dut, f"{port_name(port)}_{name}{end}") for end in ends]
            for port in range(ports)
            for name, ends in {"aw": ("addr", "len"), "w": ("data", "strb", "last"), "ar": ("addr", "len")}.items()
        }

    def kinds(self) -> set[tuple[int, str, str]]:
        """All that can be met."""
        return {(port, name, what) for port, name, *_ in self._channels for what in ("moves", "waits")}

    async def run(self) -> None:
        """Forever."""
        offered: dict[tuple[int, str], list[int]] = {}
        while True:
            await self._clock
            for port, name, sends, valid, ready in self._channels:
                is_valid, is_ready = bool(valid.value), bool(ready.value)
                if is_valid and is_ready:
                    self.met.add((port, name, "moves"))
                elif is_valid if sends else is_ready:
                    self.met.add((port, name, "waits"))
                if not sends:
                    continue
                now = [int(signal.value) for signal in self._payloads[port, name]] if is_valid else []
                before = offered.pop((port, name), now)
                if before != now:
                    self.breaches.append(f"port {port}: what {name} offered was withdrawn or changed")
                if is_valid and not is_ready:
                    offered[port, name] = now
