"""The model of throughput: bytes are exact, and clocks are near those of the simulated core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.core import Bench
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface.codes import Opcode
from relay_eps_hw.throughput import BOARDS, Memory, Work, beats, estimate, limit
from tests.hw.core.bench import SMALL

#: Bytes of a parameter: fp32 gradients and no wire copy, and 16-bit ones with a 16-bit wire copy.
BYTES = {
    Work(Opcode.FOLD, 4096): 20,
    Work(Opcode.FOLD, 4096, g_format=1): 18,
    Work(Opcode.APPLY, 4096): 16,
    Work(Opcode.APPLY, 4096, wire_format=1): 18,
    Work(Opcode.FOLD_APPLY, 4096): 28,
    Work(Opcode.FOLD_APPLY, 4096, g_format=1, wire_format=1): 28,
    Work(Opcode.ACCUMULATE, 4096, first=True): 8,
    Work(Opcode.ACCUMULATE, 4096, first=True, g_format=1): 6,
    Work(Opcode.ACCUMULATE, 4096): 12,
    Work(Opcode.ACCUMULATE, 4096, g_format=1): 10,
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(SMALL) as made:
        yield made


@pytest.mark.parametrize("work", BYTES, ids=str)
def test_bytes_of_a_parameter_are_those_of_the_operations_streams(bench: Bench, work: Work):
    assert work.bytes_per_parameter == BYTES[work]
    assert bench.measure(work, Memory()).bytes_per_parameter == BYTES[work]


@pytest.mark.parametrize("descriptors", [1, 6])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("operation", [Opcode.FOLD, Opcode.APPLY, Opcode.FOLD_APPLY])
def test_the_simulated_core_is_as_fast_as_the_model_says(
    bench: Bench, operation: Opcode, is_shared: bool, descriptors: int
):
    work = Work(operation, 2048, descriptors=descriptors)
    clocks = bench.measure(work, Memory(is_shared=is_shared)).clocks
    expected = estimate(SMALL, work, Memory(is_shared=is_shared))
    assert clocks == pytest.approx(expected.clocks, rel=0.05)
    assert clocks >= expected.limit


def test_the_limit_is_the_larger_of_rows_and_the_busiest_ports_beats():
    work = Work(Opcode.FOLD, 1000)
    narrow = CoreConfig(lanes=4, ports=1, beat_bytes=8)
    assert beats(narrow, work) == ((1500, 1000),)
    assert limit(narrow, work, Memory()) == 1500
    assert limit(narrow, work, Memory(is_shared=True)) == 2500
    assert limit(CoreConfig(lanes=1, ports=5, beat_bytes=64), work, Memory(is_shared=True)) == 1000


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_no_board_is_said_to_exceed_its_lanes_or_its_memory(board):
    work = Work(Opcode.FOLD_APPLY, 1 << 20)
    speed = board.parameters_per_second(work)
    assert 0 < speed <= board.cores * board.core.lanes * board.megahertz * 1e6
    assert speed * work.bytes_per_parameter <= 1e9 * board.peak


def test_work_that_no_lane_does_is_refused():
    with pytest.raises(ValueError, match="no operation of the lanes"):
        Work(Opcode.COPY, 10)
    with pytest.raises(ValueError, match="use 1 or more"):
        Work(Opcode.FOLD, 0)
    with pytest.raises(ValueError, match="needs a wire format"):
        Work(Opcode.FETCH, 10)
