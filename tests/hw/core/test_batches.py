"""The batches: random ones keep the rules and cover what there is, and bad ones are refused for what they should be."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from relay_eps.fpga.batch import Descriptor, decode, encode, sections
from relay_eps.fpga.interface import SOURCES, Fault, Opcode, State
from tests.hw.core.bad_batches import bad_batches
from tests.hw.core.batches import Batch, first_error, random_batch
from tests.hw.core.covered import BURSTS, OPERATIONS, PLACES, TAILS, Cell, Coverage, coverage, data_of, strike
from tests.hw.core.finished import CONFIG, finished, one
from tests.hw.core.outcome import check_outcome
from tests.hw.core.reference import run


@pytest.mark.parametrize("ragged", [0, 0.5])
@pytest.mark.parametrize("case", range(10))
def test_random_batches_keep_the_rules(seed: int, case: int, ragged: float):
    rng = np.random.default_rng([seed, case])
    bits = int(rng.integers(32, 65))
    batch = random_batch(rng, longest=600, address_bits=bits, ragged=ragged)
    assert first_error(batch, bits) is None
    lying = np.stack([batch.words(number) for number in range(batch.count)])
    assert np.array_equal(lying.view(np.uint8), encode(batch.descriptors))
    spans = {
        (batch.batch_address, batch.batch_address + 128 * batch.count),
        (batch.completion_address, batch.completion_address + 64 * batch.count),
    }
    for descriptor in batch.descriptors:
        for section in sections(descriptor).values():
            spans.add((section.address, -(-section.end // 64) * 64 if ragged else section.end))
    end = batch.base + len(batch.memory)
    assert end <= 1 << bits
    assert all(begin % 64 == 0 and batch.base <= begin < stop <= end for begin, stop in spans)
    assert all(a[1] <= b[0] or b[1] <= a[0] for a, b in combinations(spans, 2))
    assert not any(batch.memory[batch.completion_address - batch.base :][: 64 * batch.count])


def test_a_seed_gives_the_same_batch_again():
    batches = [random_batch(np.random.default_rng(seed)) for seed in (5, 5, 6)]
    assert np.array_equal(batches[0].memory, batches[1].memory)
    assert replace(batches[0], memory=batches[1].memory) == batches[1]
    assert batches[0].descriptors != batches[2].descriptors


def test_random_batches_cover_what_there_is():
    found = {use for seed in range(60) for use in coverage(random_batch(np.random.default_rng(seed)), CONFIG)}
    operations, data, tails, places, bursts = ({*keys} for keys in zip(*found, strict=True))
    assert operations == {*OPERATIONS}
    assert data == {each for opcode in OPERATIONS for each in data_of(opcode)}
    assert (tails, places, bursts) == ({*TAILS}, {*PLACES}, {*BURSTS})


@pytest.mark.parametrize(
    ("address", "words", "kind"),
    [
        (0x1040, 4, "one beat"),
        (0x1000, 5, "part of a burst"),
        (0x10C0, 16, "part of a burst"),
        (0x1100, 64, "exactly bursts"),
        (0x1000, 125, "exactly bursts"),
        (0x1040, 48, "part of a burst"),
        (0x1040, 112, "first one cut"),
        (0x1000, 65, "last one cut"),
        (0x10C0, 17, "first and last one cut"),
    ],
)
def test_a_section_is_cut_where_the_longest_burst_would_end(
    rng: np.random.Generator, address: int, words: int, kind: str
):
    fill = Descriptor(Opcode.FILL, words, addresses={"wire": address})
    (use,) = coverage(one(rng, fill, np.zeros(512, np.uint8)), CONFIG)
    assert use.bursts == kind


def test_what_was_met_is_missed_no_longer(rng: np.random.Generator):
    met = Coverage(CONFIG)
    batch = one(rng, Descriptor(Opcode.FILL, 5, addresses={"wire": 0x1000}), np.zeros(512, np.uint8))
    before = set(met.missed)
    assert met.has_missed(batch)
    met.add(batch)
    kinds = ("short", "at 4 KiB", "part of a burst")
    assert before - met.missed == {Cell(Opcode.FILL, "wire words", kind) for kind in kinds}
    assert not met.has_missed(batch)
    assert met.unmet() == ["READ_RESPONSE of a descriptor", "TIMEOUT", "RESET"]
    reads = {Opcode.FOLD, Opcode.APPLY, Opcode.FOLD_APPLY, Opcode.ACCUMULATE, Opcode.FETCH, Opcode.COPY}
    assert {operation for kind, operation in met.unstruck if kind == "READ_RESPONSE"} == reads
    assert {operation for kind, operation in met.unstruck if kind == "WRITE_RESPONSE"} == {*OPERATIONS}
    for fault, source in ((Fault.WRITE_RESPONSE, "wire"), (Fault.READ_RESPONSE, "descriptors"), (Fault.RESET, "g")):
        met.add_strike(strike(fault, source, Opcode.FILL))
    assert {operation for kind, operation in met.unstruck if kind == "WRITE_RESPONSE"} == {*OPERATIONS} - {Opcode.FILL}
    assert met.unmet() == ["TIMEOUT"]


@pytest.mark.parametrize("bits", [32, 44, 64])
def test_what_must_be_refused_is(seed: int, bits: int):
    config = replace(CONFIG, address_bits=bits)
    names: list[str] = []
    faults: set[Fault] = set()
    for name, batch, error in bad_batches(np.random.default_rng(seed), bits):
        names.append(name)
        faults.add(error.fault)
        assert first_error(batch, bits) == error, name
        expected = run(batch, config)
        assert len(expected.stages) == error.number
        assert len(expected.records) == (batch.count if error.is_recorded else 0)
        address = 0 if error.address is None else error.address
        register = int(error.fault) | SOURCES.index(error.stream) << 8
        registers = {"error": register, "error_number": error.number, "error_address": address}
        memory = finished(batch, expected)
        assert check_outcome(batch, expected, memory, registers) == [], name
        assert check_outcome(batch, expected, memory, {**registers, "error_number": error.number + 1}) != []
        assert check_outcome(batch, expected, memory, {**registers, "error": 0}) != []
        if error.is_recorded:
            at = batch.completion_address - batch.base
            got = decode(memory[at:], batch.count)
            states = [State.DONE] * error.number + [State.FAULTED] + [State.NOT_RUN] * (batch.count - error.number - 1)
            assert [each.state for each in got] == states
            found = got[error.number]
            assert (found.fault, found.stream, found.tag) == (error.fault, error.stream, error.tag)
            assert found.fault_address == error.address
    assert len(names) == len({*names})
    wanted = ("OPCODE", "FORMAT", "LENGTH", "ALIGNMENT", "ADDRESS", "SCALAR", "OVERLAP")
    assert faults == {Fault[name] for name in wanted}


def test_equal_in_blocks_is_equal_but_a_block_less_is_not(rng: np.random.Generator):
    def batch(words: int) -> Batch:
        fills = tuple(Descriptor(Opcode.FILL, length, addresses={"wire": 0x1000}) for length in (20, words))
        first = one(rng, fills[0], np.zeros(512, np.uint8))
        first.memory[2048:2304] = encode(fills).reshape(-1)
        return replace(first, descriptors=fills, count=2)

    assert [first_error(batch(words), 64) is None for words in (16, 17, 32, 33)] == [False, True, True, False]
