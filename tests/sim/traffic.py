"""Mere traffic in the place of a core: the design of traffic.v, and what it reads and writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.faults import Faults
from relay_eps_sim.core import SimulatedCore

TRAFFIC = Path(__file__).with_name("traffic.v").read_text()
#: Of port_k in traffic.v.
READ, WRITE, SLOW, HALF = 1, 2, 4, 8
BASE, SIZE, TARGET = 0x10_0000, 0x8000, 0x10_4000
CONFIG = CoreConfig(lanes=1, ports=2, beat_bytes=8, address_bits=40)
WIDE = CoreConfig(lanes=1, ports=1, beat_bytes=64, address_bits=64)
FAULTS = 11


def faults() -> Faults:
    some = Faults()
    for number in range(1, FAULTS + 1):
        assert some.number(f"traffic.{number}") == number
    return some


def make(config: CoreConfig = CONFIG, *, seed: int = 1, waves: Path | None = None) -> SimulatedCore:
    defines = f"`define BYTES {config.beat_bytes}\n" + "`define TWO\n" * (config.ports == 2) + "`define FAULTS\n"
    return SimulatedCore(config, defines + TRAFFIC, faults=faults(), seed=seed, waves=waves)


def attached(sim: SimulatedCore) -> NDArray[np.uint8]:
    data = np.random.default_rng(1).integers(0, 256, SIZE).astype(np.uint8)
    sim.attach(BASE, data)
    return data


def begin(
    sim: SimulatedCore, *modes: int, bursts: int = 8, beats: int = 16, reads: int = BASE, writes: int = TARGET
) -> None:
    """Start traffic: ``modes`` of the ports, each with so many bursts."""
    for port, mode in enumerate(modes):
        sim.set(f"port_{port}", mode)
    sim.start(reads, beats << 16 | bursts, writes)


def run(sim: SimulatedCore, *modes: int, **about: int) -> int:
    begin(sim, *modes, **about)
    return sim.finish(20_000)


def written(beats: int, words: int, port: int = 0) -> NDArray[np.uint8]:
    """What so many beats write."""
    numbers = np.arange(beats, dtype=np.uint64)[:, None]
    marks = np.uint64(port << 56) | np.arange(words, dtype=np.uint64) << np.uint64(48)
    return (numbers | marks).reshape(-1).view(np.uint8)


def digest(data: NDArray[np.uint8], words: int) -> int:
    """Of what was read, as the traffic makes it."""

    def turned(value: int) -> int:
        return (value << 1 | value >> 63) & (1 << 64) - 1

    total = 0
    for beat in data.view(np.uint64).reshape(-1, words).tolist():
        folded = 0
        for word in beat:
            folded = turned(folded) ^ word
        total = turned(total) ^ folded
    return total


def of(sim: SimulatedCore, *, is_write: bool, port: int = 0) -> NDArray[np.void]:
    log = sim.bursts()
    return log[(log["is_write"] == is_write) & (log["port"] == port)]
