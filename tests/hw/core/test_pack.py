"""Pack: a section's elements fill as many beats as hold it, and no byte beyond its end is written."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from relay_eps_hw.core.pack import Pack
from relay_eps_hw.core.unpack import Unpack
from tests.hw.core.test_unpack import CONFIGS, Section, faults_of, is_noticed, sections_about, simulate

Beat = tuple[int, int]


def rows_of(section: Section, lanes: int, dice: random.Random) -> list[list[int]]:
    """The rows of a section, with anything beyond its end and in high halves that hold nothing."""
    rows = section.in_rows(lanes)
    if section.half:
        rows = [[element | dice.getrandbits(16) << 16 for element in row] for row in rows]
    return [row + [dice.getrandbits(32) for _ in range(lanes - len(row))] for row in rows]


def beats_of(section: Section, beat_bytes: int, dice: random.Random) -> list[Beat]:
    """Its beats, as data and strobes."""
    beats = section.in_memory(dice, beat_bytes)
    tail = len(section.elements) * section.size % beat_bytes or beat_bytes
    return [(beat, (1 << beat_bytes) - 1) for beat in beats[:-1]] + [(beats[-1], (1 << tail) - 1)]


def written(beat: Beat) -> Beat:
    """A beat without the bytes that have no strobe."""
    data, strobes = beat
    mask = sum(0xFF << 8 * byte for byte in range(strobes.bit_length()) if strobes >> byte & 1)
    return data & mask, strobes


def split(payload: int, beat_bytes: int) -> Beat:
    """A payload's data and strobes."""
    return payload & (1 << 8 * beat_bytes) - 1, payload >> 8 * beat_bytes


def mismatch(
    unit: Pack, beat_bytes: int, sections: list[Section], dice: random.Random, *, late: float, fault: str | None = None
) -> str | None:
    """What is wrong about the beats of these sections, or about how they came; None for nothing."""
    lanes = len(unit.i.payload)
    rows = [row for section in sections for row in rows_of(section, lanes, dice)]
    beats = [written(beat) for section in sections for beat in beats_of(section, beat_bytes, dice)]
    # More rows wait behind the last section; they are to stay where they are.
    more = [[dice.getrandbits(32) for _ in range(lanes)] for _ in range(3)]
    outcome = simulate(unit, sections, rows + more, len(beats), dice, late=late, fault=fault)
    got = [written(split(payload, beat_bytes)) for payload in outcome.payloads]
    if got != beats:
        return f"the beats are {got} and not {beats}"
    if outcome.taken != len(rows):
        return f"{outcome.taken} rows were taken and not {len(rows)}"
    if outcome.broken:
        return ", ".join(outcome.broken)
    clocks = sum(section.clocks(beat_bytes, lanes) for section in sections)
    if not late and outcome.latency + outcome.clocks != clocks + 2:
        return f"it took {outcome.latency + outcome.clocks} clocks and not {clocks} and 2 to begin with"
    return None


@pytest.mark.parametrize(("beat_bytes", "lanes", "half"), CONFIGS)
def test_beats_hold_the_sections_elements_in_order_and_without_a_gap(
    seed: int, beat_bytes: int, lanes: int, half: bool
):
    dice = random.Random(seed)
    sections = sections_about(dice, beat_bytes, lanes, half)
    assert mismatch(Pack(beat_bytes, lanes, half=half), beat_bytes, sections, dice, late=0) is None


@pytest.mark.parametrize(("beat_bytes", "lanes", "half"), CONFIGS)
def test_beats_are_the_same_however_the_streams_wait(seed: int, beat_bytes: int, lanes: int, half: bool):
    dice = random.Random(seed)
    sections = sections_about(dice, beat_bytes, lanes, half)
    assert mismatch(Pack(beat_bytes, lanes, half=half), beat_bytes, sections, dice, late=0.4) is None


class RoundTrip(wiring.Component):
    """Beats through rows to beats again.

    Ports:
        sections, i: as for `Unpack`.
        o: as for `Pack`.
    """

    def __init__(self, beat_bytes: int, lanes: int, *, half: bool) -> None:
        self.unpack = Unpack(beat_bytes, lanes, half=half)
        self.pack = Pack(beat_bytes, lanes, half=half)
        there, back = self.unpack.signature.members, self.pack.signature.members
        super().__init__({"sections": there["sections"], "i": there["i"], "o": back["o"]})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unpack, m.submodules.pack = there, back = self.unpack, self.pack
        wiring.connect(m, wiring.flipped(self.i), there.i)
        wiring.connect(m, there.o, back.i)
        wiring.connect(m, back.o, wiring.flipped(self.o))
        # A section goes to both at once.
        m.d.comb += [
            there.sections.payload.eq(self.sections.payload),
            back.sections.payload.eq(self.sections.payload),
            there.sections.valid.eq(self.sections.valid & back.sections.ready),
            back.sections.valid.eq(self.sections.valid & there.sections.ready),
            self.sections.ready.eq(there.sections.ready & back.sections.ready),
        ]
        return m


@pytest.mark.parametrize(("beat_bytes", "lanes", "half"), CONFIGS)
def test_what_is_unpacked_and_packed_again_is_the_same(seed: int, beat_bytes: int, lanes: int, half: bool):
    dice = random.Random(seed)
    sections = sections_about(dice, beat_bytes, lanes, half)
    beats = [beat for section in sections for beat in beats_of(section, beat_bytes, dice)]
    trip = RoundTrip(beat_bytes, lanes, half=half)
    outcome = simulate(trip, sections, [beat for beat, _ in beats], len(beats), dice, late=0.3)
    got = [written(split(payload, beat_bytes)) for payload in outcome.payloads]
    assert got == [written(beat) for beat in beats]
    assert outcome.taken == len(beats)
    assert not outcome.broken


@pytest.mark.parametrize("fault", faults_of(Pack))
def test_each_fault_is_noticed(seed: int, fault: str):
    assert is_noticed(Pack, mismatch, seed, fault)


def test_there_are_faults_to_notice():
    assert len(faults_of(Pack)) >= 5


@pytest.mark.parametrize(("beat_bytes", "lanes"), [(4, 1), (128, 1), ("8", 1), (8, 3), (8, 0), (8, 32), (8, True)])
def test_widths_that_no_core_has_are_refused(beat_bytes: Any, lanes: Any):
    with pytest.raises(ValueError, match="are not supported: use one of"):
        Pack(beat_bytes, lanes, half=False)
