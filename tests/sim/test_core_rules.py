"""Each rule of AXI that the harness of a core checks, with traffic that breaks it."""

from __future__ import annotations

import re

import pytest
from numpy.typing import NDArray

from relay_eps_sim.core import MemoryModel, SimulatedCore
from tests.sim.traffic import (
    BASE,
    READ,
    TARGET,
    WRITE,
    begin,
    run,
)

EITHER, DATA = (READ, WRITE), (WRITE,)
# The fault of traffic.v or what it is asked for, in which directions it shows, and what is said of it.
BROKEN: dict[str, tuple[int, dict[str, int], tuple[int, ...], str]] = {
    "an address goes away": (1, {}, EITHER, "address went away before it was taken"),
    "an address changes": (2, {}, EITHER, "address changed before it was taken"),
    "data goes away": (3, {}, DATA, "the write data went away before it was taken"),
    "data changes": (4, {}, DATA, "the write data changed before it was taken"),
    "no WLAST": (5, {}, DATA, "WLAST is 0 on beat 16 of 16"),
    "an early WLAST": (6, {}, DATA, "WLAST is 1 on beat 15 of 16"),
    "a beat too many": (7, {}, DATA, "there is write data without an address"),
    "AxSIZE": (8, {}, EITHER, "of AxSIZE 1 is no full beat"),
    "AxBURST": (9, {}, EITHER, "has AxBURST 0, not 1"),
    "AxCACHE": (10, {}, EITHER, "has AxCACHE 2, not 3"),
    "AxLOCK": (11, {}, EITHER, "is exclusive"),
    "a long burst": (0, {"beats": 17}, EITHER, "of 17 beats is too long"),
    "4 KiB": (0, {"reads": BASE + 0xF88, "writes": TARGET + 0xF88}, EITHER, "f88 crosses 4 KiB"),
    "alignment": (0, {"reads": BASE + 4, "writes": TARGET + 4}, EITHER, "004 is not aligned"),
    "address bits": (0, {"reads": BASE | 1 << 40, "writes": TARGET | 1 << 63}, EITHER, "000 has too many bits"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_protocol_is_found_in_each_direction_of_each_port(
    sim: SimulatedCore, memory: NDArray, name: str
):
    number, about, modes, message = BROKEN[name]
    sim.configure(MemoryModel(stall=0.5))
    sim.select_fault(number)
    for port in (0, 1):
        for mode in modes:
            seen = len(sim.violations)
            began = sim.now
            begin(sim, *([0] * port), mode, bursts=4, **about)
            sim.clock(1500)
            (found, *_) = [text for text in sim.violations[seen:] if message in text]
            clock, where = re.findall(r"^clock (\d+), port (\d): ", found)[0]
            assert int(where) == port
            assert began < int(clock) < sim.now
            assert ("read" if mode == READ else "write") in found or "WLAST" in found
            sim.reset()
    with pytest.raises(AssertionError, match=r"^the protocol was violated \d+ times:\nclock \d+, port 0: "):
        sim.check()


def test_the_traffic_breaks_nothing_by_itself(sim: SimulatedCore, memory: NDArray):
    sim.configure(MemoryModel(stall=0.5))
    run(sim, READ | WRITE, READ | WRITE, reads=BASE + 0xF80, writes=TARGET + 0xF80)
    sim.check()
    assert sim.violations == []


def test_only_the_first_breaches_are_kept_and_all_are_counted(sim: SimulatedCore, memory: NDArray):
    sim.select_fault(10)
    run(sim, READ | WRITE, bursts=100, beats=1)
    assert len(sim.violations) == 100
    with pytest.raises(AssertionError, match="violated 200 times"):
        sim.check()
