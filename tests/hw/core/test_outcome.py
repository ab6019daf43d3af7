"""What judges a core: it finds nothing wrong with what is right, and notices what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from relay_eps.fpga.batch import Descriptor, encode
from relay_eps.fpga.interface import SOURCES, Fault, Opcode, State
from relay_eps_hw.interface.descriptors import RECORD
from tests.hw.core.batches import Batch, random_batch
from tests.hw.core.finished import CONFIG, Memory, any_batch, finished, known, one, with_records
from tests.hw.core.outcome import Trouble, check_fault_outcome, check_outcome
from tests.hw.core.reference import Expected, Fields, Kind, matches, record, run


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
