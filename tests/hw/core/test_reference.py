"""The reference and the random batches: they keep the rules themselves, and notice what does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps.eps import golden
from relay_eps.eps.formats import widen
from relay_eps.eps.hyper import FoldScalars
from relay_eps.fpga.batch import FORMATS, Descriptor, decode, encode, sections
from relay_eps.fpga.interface import SOURCES, Fault, Opcode, State
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface import descriptors as layouts
from relay_eps_hw.interface.descriptors import RECORD
from tests.hw.core.batches import Batch, bad_batches, coverage, first_error, random_batch
from tests.hw.core.reference import (
    Expected,
    Fields,
    Kind,
    Trouble,
    check_fault_outcome,
    check_outcome,
    matches,
    record,
    run,
)

CONFIG = CoreConfig(lanes=4, ports=2, beat_bytes=16, build_id=0x1122_3344_5566_7788)
Memory = NDArray[np.uint8]


def with_records(batch: Batch, memory: Memory, records: Sequence[Fields]) -> Memory:
    """A copy of memory in which these records were written, each after one clock."""
    memory = memory.copy()
    for number, fields in enumerate(records):
        at = batch.completion_address - batch.base + RECORD.size * number
        row = 0
        for place in RECORD:
            names = [(f"{place.name}.{bits.name}", bits.low) for bits in place.fields] or [(place.name, 0)]
            for name, low in names:
                value = fields[name]
                row |= (1 if value is None else value) << low + 8 * place.offset
        memory[at : at + RECORD.size] = np.frombuffer(row.to_bytes(RECORD.size, "little"), np.uint8)
    return memory


def known(fields: Fields) -> Fields:
    """Without what may be anything."""
    return {**fields, "status.nonfinite": fields["status.nonfinite"] or 0, "clocks": fields["clocks"] or 1}


def finished(batch: Batch, expected: Expected) -> Memory:
    """Memory as it must be in the end."""
    return with_records(batch, expected.memory.values.view(np.uint8), [known(fields) for fields in expected.records])


def any_batch(rng: np.random.Generator) -> Batch:
    return random_batch(rng, longest=600, address_bits=int(rng.integers(32, 65)), ragged=float(rng.choice([0, 0.4])))


def one(rng: np.random.Generator, descriptor: Descriptor, memory: Memory) -> Batch:
    """A batch of one descriptor; its sections start at 0x1000, which is where ``memory`` lies."""
    image = np.concatenate([memory, rng.integers(256, size=4096 - len(memory), dtype=np.uint8)])
    image[2048:2176] = encode([descriptor])
    image[3072:3136] = 0
    return Batch(image, 0x1000, (descriptor,), 0x1000 + 2048, 0x1000 + 3072, 1)


@pytest.mark.parametrize("case", range(8))
def test_what_the_reference_makes_is_right(seed: int, case: int):
    batch = any_batch(np.random.default_rng([seed, case]))
    expected = run(batch, CONFIG)
    registers = {"error": 0}
    assert check_outcome(batch, expected, finished(batch, expected), registers) == []
    assert check_outcome(batch, expected, finished(batch, expected), {"error": 1}) != []


@pytest.mark.parametrize("case", range(4))
def test_a_nan_is_any_nan_and_nothing_else(seed: int, case: int):
    rng = np.random.default_rng([seed, case])
    batch = any_batch(rng)
    expected = run(batch, CONFIG)
    memory = finished(batch, expected)
    halves, kinds = memory.view(np.uint16), expected.memory.kinds
    halves[kinds == Kind.UNKNOWN] = rng.integers(1 << 16, size=np.sum(kinds == Kind.UNKNOWN), dtype=np.uint16)
    pairs = (kinds.reshape(-1, 2) == Kind.NAN_FP32).all(axis=1)
    words = memory.view(np.uint32)
    words[pairs] = rng.choice(np.array([0x7FC0_0000, 0xFFFF_FFFF, 0x7F80_0001], np.uint32), int(pairs.sum()))
    for kind, choice in ((Kind.NAN_BF16, (0x7F81, 0xFFC0)), (Kind.NAN_FP16, (0x7C01, 0xFE00))):
        halves[kinds == kind] = rng.choice(np.array(choice, np.uint16), int(np.sum(kinds == kind)))
    assert check_outcome(batch, expected, memory) == []
    for at in np.flatnonzero(pairs)[:3].tolist():
        wrong = memory.copy()
        wrong.view(np.uint32)[at] = 0x7F80_0000
        assert len(check_outcome(batch, expected, wrong)) == 1


@pytest.mark.parametrize("case", range(4))
def test_every_flipped_bit_of_memory_is_noticed(seed: int, case: int):
    rng = np.random.default_rng([seed, case])
    batch = any_batch(rng)
    expected = run(batch, CONFIG)
    right = finished(batch, expected)
    records = batch.completion_address - batch.base
    owned = np.zeros(len(right), np.bool_)
    for write in (write for stage in expected.stages for write in stage):
        owned[2 * write.first : 2 * (write.first + len(write.halves.values))] = True
    is_exact = np.repeat(expected.memory.kinds == Kind.EXACT, 2)
    is_exact[records : records + RECORD.size * batch.count] = False
    for where in (owned & is_exact, ~owned & is_exact):
        for at in rng.choice(np.flatnonzero(where), 20).tolist():
            memory = right.copy()
            memory[at] ^= 1 << int(rng.integers(8))
            (sentence,) = check_outcome(batch, expected, memory)
            assert hex(batch.base + at // 2 * 2) in sentence
            assert ("nothing writes" in sentence) == (not owned[at])


def test_every_change_of_a_record_is_noticed(rng: np.random.Generator):
    batch = any_batch(rng)
    expected = run(batch, CONFIG)
    right = finished(batch, expected)
    start = batch.completion_address - batch.base
    clocks = range(RECORD["clocks"].offset, RECORD["clocks"].end)
    for at in range(RECORD.size * batch.count):
        number, offset = divmod(at, RECORD.size)
        if offset in clocks or (offset == 2 and expected.records[number]["status.nonfinite"] is None):
            continue
        memory = right.copy()
        memory[start + at] ^= 1 << int(rng.integers(8))
        wrong = check_outcome(batch, expected, memory)
        assert wrong
        assert all(sentence.startswith(f"record {number}: ") for sentence in wrong)
    number = next(number for number, stage in enumerate(expected.stages) if stage)
    right[start + RECORD.size * number + RECORD["clocks"].offset] = 0
    assert check_outcome(batch, expected, right) == [f"record {number}: it took no clocks"]


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
    found = {key for seed in range(60) for key in coverage(random_batch(np.random.default_rng(seed)))}
    operations, streams, tails, places = ({*keys} for keys in zip(*found, strict=True))
    assert operations == {opcode.name for opcode in Opcode} - {"BARRIER"}
    assert {f"{stream} {fmt.value}" for stream in ("g", "wire") for fmt in FORMATS} < streams
    assert len(tails) == 5
    assert len(places) == 5


def test_unknown_is_only_what_counters_give():
    for seed in range(40):
        batch = random_batch(np.random.default_rng(seed), longest=300, ragged=seed % 2 / 2)
        if not any(descriptor.opcode is Opcode.IDENTIFY for descriptor in batch.descriptors):
            assert Kind.UNKNOWN not in run(batch, CONFIG).memory.kinds


@pytest.mark.parametrize("g_format", range(3))
@pytest.mark.parametrize("first", [False, True])
def test_a_fold_is_the_golden_models(rng: np.random.Generator, g_format: int, first: bool):
    m, v = np.abs(rng.standard_normal((2, 19)).astype(np.float32))
    g = rng.standard_normal(19).astype(np.float32)
    g = (g.view(np.uint32) >> 16).astype(np.uint16) if g_format == 1 else g.astype(FORMATS[g_format].carrier)
    scalars = {"scale": -0.5, "b1": 0.875, "c1": 0.125, "b2": 0.75, "c2": 0.25}
    addresses = {"g": 0x1000, "m": 0x1080, "v": 0x1100}
    memory = np.zeros(512, np.uint8)
    for at, array in ((0, g), (128, m), (256, v)):
        memory[at : at + array.nbytes] = array.view(np.uint8)
    descriptor = Descriptor(Opcode.FOLD, 19, 7, first, g_format, addresses=addresses, scalars=scalars)
    expected = run(one(rng, descriptor, memory), CONFIG)
    wanted = golden.fold(m, v, g, FoldScalars(0.875, 0.125, 0.75, 0.25), scale=-0.5, first=first)
    after = expected.memory.values.view(np.uint8)
    assert np.array_equal(after[128:204].view(np.float32), wanted[0])
    assert np.array_equal(after[256:332].view(np.float32), wanted[1])
    counts = {"m_acknowledged": 19, "v_acknowledged": 19}
    assert expected.records == (record(0, State.DONE, 7, wrote=1, **counts),)
    assert np.isfinite(widen(g)).all()


def test_a_copy_of_any_nan_is_any_nan(rng: np.random.Generator):
    nans = np.array([0x7FC0_0000, 0x3F80_0000, 0xFFC0_0001], np.uint32)
    batch = one(
        rng, Descriptor(Opcode.ACCUMULATE, 3, first=True, addresses={"g": 0x1000, "m": 0x1040}), np.zeros(512, np.uint8)
    )
    copy = Descriptor(Opcode.COPY, 3, addresses={"p": 0x1040, "wire": 0x1080})
    memory = batch.memory.copy()
    memory[:12] = nans.view(np.uint8)
    memory[2048:2304] = encode([batch.descriptors[0], copy]).reshape(-1)
    expected = run(replace(batch, memory=memory, descriptors=(batch.descriptors[0], copy), count=2), CONFIG)
    assert expected.records[0]["status.nonfinite"] == 1
    assert expected.records[1]["status.nonfinite"] == 0
    for start in (0x20, 0x40):
        part = expected.memory.part(start, 6)
        assert part.kinds.tolist() == [Kind.NAN_FP32] * 2 + [Kind.EXACT] * 2 + [Kind.NAN_FP32] * 2
        other = np.array([0xFFFF_FFFF, 0x3F80_0000, 0x7F80_0001], np.uint32)
        assert matches(other.view(np.uint16), part).all()
        other[1] += 1
        assert matches(other.view(np.uint16), part).tolist() == [True, True, False, True, True, True]
    # The gradient itself was there before: its bits are known.
    assert not expected.memory.kinds[:6].any()


def test_an_identify_is_the_constant_registers(rng: np.random.Generator):
    descriptor = Descriptor(Opcode.IDENTIFY, 64, addresses={"wire": 0x1000})
    part = run(one(rng, descriptor, np.zeros(256, np.uint8)), CONFIG).memory.part(0, 128)
    words = part.values.view(np.uint32)
    assert words[0].tobytes() == b"REPS"
    assert words[1:6].tolist() == [1, 0x5566_7788, 0x1122_3344, 4 | 2 << 8 | 7 << 12 | 7 << 15 | 16 << 18, 16 | 64 << 9]
    counters = {*range(16, 40)}
    assert {at for at in range(64) if part.kinds[2 * at] == Kind.UNKNOWN} == counters
    assert not words[[*range(6, 16), *range(40, 64)]].any()


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


def interrupted(
    batch: Batch, expected: Expected, number: int, trouble: Trouble, at: int
) -> tuple[Memory, list[Fields]]:
    """As it may be where descriptor ``number`` has the fault in its burst at ``at``, and wrote half of its elements."""
    memory = batch.memory.copy()
    halves = memory.view(np.uint16)
    records = [known(fields) for fields in expected.records[:number]]
    for write in (write for stage in expected.stages[:number] for write in stage):
        halves[write.first : write.first + len(write.halves.values)] = write.halves.values
    stage, counts = expected.stages[number], {}
    for write in stage:
        count = len(write.halves.values) // write.elements * (write.elements // 2)
        halves[write.first : write.first + count] = write.halves.values[:count]
        # The response of its last one has not come.
        counts[f"{write.stream}_acknowledged"] = max(write.elements // 2 - 1, 0)
    source = SOURCES.index(trouble.stream or "descriptors")
    fields = {"fault": int(trouble.fault), "stream": source, "fault_address": at, "wrote": int(bool(stage))}
    tags = [descriptor.tag for descriptor in batch.descriptors]
    records.append(known(record(number, State.FAULTED, tags[number], **fields, **counts)))
    records += [known(record(later, State.NOT_RUN)) for later in range(number + 1, batch.count)]
    return with_records(batch, memory, records), records


@pytest.mark.parametrize("case", range(8))
def test_a_fault_in_flight_is_right_by_its_rules_alone(seed: int, case: int):
    rng = np.random.default_rng([seed, case])
    batch = random_batch(rng, longest=600)
    expected = run(batch, CONFIG)
    number = next(n for n in (*range(4, 12), *range(4)) if any(write.elements > 8 for write in expected.stages[n]))
    write = max(expected.stages[number], key=lambda write: write.elements)
    at = batch.base + 2 * write.first
    trouble = Trouble(Fault.WRITE_RESPONSE, write.stream, at + 5, number)
    memory, records = interrupted(batch, expected, number, trouble, at)
    error = int(trouble.fault) | SOURCES.index(write.stream) << 8
    registers = {"error": error, "error_number": number, "error_address": at}

    def check(change: Callable[[list[Fields]], None], trouble: Trouble = trouble) -> list[str]:
        changed = list(records)
        change(changed)
        return check_fault_outcome(batch, expected, with_records(batch, memory, changed), trouble, registers)

    def having(place: int, **fields: int) -> Callable[[list[Fields]], None]:
        def change(changed: list[Fields]) -> None:
            changed[place] = {**changed[place], **{name.replace("__", "."): value for name, value in fields.items()}}

        return change

    assert check(having(number)) == []
    assert check(having(number), replace(trouble, number=None)) == []
    assert check(having(number, status__state=State.DONE))
    assert check(having(number, status__state=State.CUT_SHORT))
    assert check(having(number, status__wrote=0))
    assert check(having(number, tag=1))
    assert check(having(number, fault_address=at + 16))
    assert check(having(number, fault_address=at - 16 * 16))
    assert check(having(number, **{f"{write.stream}_acknowledged": write.elements + 1}))
    # Acknowledged and not there, unless it was there before.
    there = memory.view(np.uint16)[write.first : write.first + len(write.halves.values)]
    if not matches(there, write.halves).all():
        assert check(having(number, **{f"{write.stream}_acknowledged": write.elements}))
    assert check(having(number), replace(trouble, number=number - 1))
    assert check(having(number), replace(trouble, fault=Fault.TIMEOUT))
    assert check(having(number), replace(trouble, address=at + 4096))
    if number + 1 < batch.count:
        assert check(having(number + 1, status__state=State.PENDING))
        assert check(having(number + 1, status__state=State.FAULTED))
        assert check(having(number + 1, status__wrote=1))
    lost = memory.copy()
    lost[batch.completion_address - batch.base :][: 64 * batch.count] = 0
    assert check_fault_outcome(batch, expected, lost, trouble, registers)
    assert check_fault_outcome(batch, expected, lost, trouble, registers, records_written=False) == []
    for place in (batch.batch_address - batch.base, 2 * write.first):
        wrong = memory.copy()
        wrong.view(np.uint16)[place // 2] ^= 0x0101
        if place != 2 * write.first or write.halves.kinds[0] == Kind.EXACT:
            assert check_fault_outcome(batch, expected, wrong, trouble, registers)


def test_after_a_fault_later_writes_may_be_there_too(rng: np.random.Generator):
    fills = tuple(
        Descriptor(Opcode.FILL, 20, tag, pattern=tag, addresses={"wire": 0x1000}) for tag in (0x11111111, 0x22222222)
    )
    batch = one(rng, fills[0], np.zeros(512, np.uint8))
    batch.memory[2048:2304] = encode(fills).reshape(-1)
    batch.memory[3072:3200] = 0
    batch = replace(batch, descriptors=fills, count=2)
    expected = run(batch, CONFIG)
    trouble = Trouble(Fault.TIMEOUT, "wire", 0x1040, 0)

    def check(words: Sequence[int], first: int, second: int) -> list[str]:
        memory = batch.memory.copy()
        memory[:80] = np.array(words, np.uint32).view(np.uint8)
        fields = {"fault": 3, "stream": 4, "fault_address": 0x1000, "wrote": 1, "wire_acknowledged": first}
        records = [
            known(record(0, State.FAULTED, fills[0].tag, **fields)),
            known(record(1, State.CUT_SHORT, fills[1].tag, wrote=1, wire_acknowledged=second)),
        ]
        registers = {"error": 3 | 4 << 8 | 1 << 16, "error_number": 0, "error_address": 0x1000}
        return check_fault_outcome(batch, expected, with_records(batch, memory, records), trouble, registers)

    early, late = fills[0].pattern, fills[1].pattern
    mixed = [late] * 6 + [early] * 6 + [0, early] * 4
    assert check(mixed, 12, 6) == []
    assert check(mixed, 6, 4) == []
    assert check(mixed, 13, 6), "the first one's element 12 is not there"
    assert check(mixed, 12, 7), "the second one's element 6 is not there"
    assert check([0x3333_3333, *mixed[1:]], 0, 0), "nobody writes this"


def test_a_reset_ends_the_first_that_is_not_done(rng: np.random.Generator):
    batch = random_batch(rng, longest=100)
    expected = run(batch, CONFIG)
    trouble = Trouble(Fault.RESET)
    number = 5
    memory, records = interrupted(batch, expected, number, trouble, 0)
    assert check_fault_outcome(batch, expected, memory, trouble) == []
    records[number] = known(record(number, State.NOT_RUN))
    records[number + 1] = known(record(number + 1, State.FAULTED, batch.descriptors[6].tag, fault=int(Fault.RESET)))
    wrong = check_fault_outcome(batch, expected, with_records(batch, batch.memory, records), trouble)
    assert any("the first that is not done" in sentence for sentence in wrong)


def test_the_host_has_the_same_names_for_what_meets_a_fault():
    assert SOURCES == layouts.SOURCES
