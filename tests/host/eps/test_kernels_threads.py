"""The kernels' threads: their budget, their errors, their end; and what a call refuses before it changes anything."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relay_eps.eps import _kernels, kernels
from relay_eps.eps.arithmetic import GoldenArithmetic
from relay_eps.eps.hyper import AdamHyper
from relay_eps.eps.kernels import CHUNK, KernelArithmetic, default_threads, instruction_sets
from relay_eps.errors import ContractError, RelayEpsError, ServerClosed
from tests.host.eps.bits import assert_same_bits, hard_values

HYPER = AdamHyper()
FOLD, APPLY = HYPER.fold_scalars(), HYPER.apply_scalars(1)
BUDGET_VARIABLES = ("RELAY_EPS_THREADS", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints for ``code``; it must end well, within a minute, and say nothing on stderr."""
    kept = {name: value for name, value in os.environ.items() if name not in BUDGET_VARIABLES}
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**kept, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"
    assert done.stderr == ""
    return done.stdout.strip()


# --- the budget (H10)

SAY_BUDGET = "from relay_eps.eps.kernels import *; print(KernelArithmetic().threads, default_threads())"


def budget(code: str = SAY_BUDGET, **environment: str) -> int:
    used, stated = python(code, **environment).split()
    assert used == stated
    return int(used)


def test_the_budget_is_the_cores_that_this_process_may_use() -> None:
    assert budget() == len(os.sched_getaffinity(0))


def test_h10_one_openmp_thread_from_a_launcher_is_not_obeyed() -> None:
    assert budget(OMP_NUM_THREADS="1") == len(os.sched_getaffinity(0))


def test_the_affinity_of_the_process_is_respected() -> None:
    core = min(os.sched_getaffinity(0))
    assert budget(f"import os; os.sched_setaffinity(0, {{{core}}}); {SAY_BUDGET}") == 1


def test_the_cores_are_shared_among_the_processes_of_one_machine() -> None:
    cores = len(os.sched_getaffinity(0))
    assert budget(LOCAL_WORLD_SIZE="2") == max(1, cores // 2)
    assert budget(LOCAL_WORLD_SIZE=str(cores + 1)) == 1


def test_the_environment_can_set_the_budget_and_the_argument_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert budget(RELAY_EPS_THREADS="3", LOCAL_WORLD_SIZE="2") == 3
    monkeypatch.setenv("RELAY_EPS_THREADS", "3")
    assert KernelArithmetic(threads=2).threads == 2


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
@pytest.mark.parametrize("name", ["RELAY_EPS_THREADS", "LOCAL_WORLD_SIZE"])
def test_a_budget_that_is_no_positive_number_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("RELAY_EPS_THREADS", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(ContractError, match=f"{name} is '{value}'"):
        default_threads()


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_thread_count_out_of_range_is_refused(threads: int) -> None:
    with pytest.raises(ContractError, match=f"1 to 1024, not {threads}"):
        KernelArithmetic(threads=threads)


# --- threads that work, fail and end


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_threads_are_those_of_the_budget_and_close_ends_them() -> None:
    before = tasks()
    made = KernelArithmetic(threads=4)
    assert tasks() == before + 3, "the calling thread is the fourth"
    made.close()
    made.close()
    assert tasks() == before
    with pytest.raises(ServerClosed, match="closed"):
        made.all_finite(np.zeros(1, np.float32))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_any_chunk_reaches_the_caller_and_the_workers_go_on(threads: int, rng: np.random.Generator) -> None:
    native = _kernels.Kernels(instruction_sets()[0], threads, CHUNK)
    length = 20 * CHUNK + 1
    for chunk in (0, 7, 20):
        with pytest.raises(RuntimeError, match=f"chunk at {chunk * CHUNK}$"):
            native.raise_in_chunk(length, chunk * CHUNK)
        values, out = hard_values(rng, length), np.zeros(length, np.float32)
        native.convert(values, out)
        assert_same_bits(out, values)


def test_calls_from_several_python_threads_do_not_mix(rng: np.random.Generator) -> None:
    made, golden = KernelArithmetic(threads=3), GoldenArithmetic()
    sections = [[hard_values(rng, size) for _ in range(4)] for size in (5, CHUNK, 3 * CHUNK + 1, 40_000)]
    wanted = [[a.copy() for a in arrays] for arrays in sections]

    def work(arithmetic: Any, p: Any, m: Any, v: Any, g: Any) -> None:
        for _ in range(25):
            arithmetic.fold_apply(p, m, v, g, FOLD, APPLY, None, scale=1.0, first=True)

    callers = [threading.Thread(target=work, args=(made, *arrays)) for arrays in sections]
    for caller in callers:
        caller.start()
    for arrays in wanted:
        work(golden, *arrays)
    for caller in callers:
        caller.join()
    for got, want in zip(sections, wanted, strict=True):
        for name, a, b in zip("pmvg", got, want, strict=True):
            assert_same_bits(a, b, name)


def test_other_python_threads_run_during_a_call() -> None:
    made, values = KernelArithmetic(threads=2), np.zeros(5_000_000, np.float32)
    rounds, stop = 0, threading.Event()

    def count() -> None:
        nonlocal rounds
        while not stop.is_set():
            rounds += 1
            time.sleep(1e-4)

    # With a switch interval this long, only a call that lets go of the interpreter lets the counter in.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    counter = threading.Thread(target=count)
    try:
        counter.start()
        before = rounds
        for _ in range(1000):
            made.all_finite(values)
            if rounds > before:
                break
        seen = rounds
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        counter.join()
    assert seen > before


PASSES = """
    import os, threading, time
    import numpy as np
    from relay_eps.eps.kernels import KernelArithmetic

    kernels = KernelArithmetic(threads=3)
    source, out = np.arange(300_000, dtype=np.float32), np.zeros(300_000, np.float32)

    def forever():
        while True:
            kernels.convert(source, out)

    kernels.convert(source, out)
"""


def test_a_forked_child_has_workers_of_its_own_even_when_the_fork_fell_into_a_pass() -> None:
    code = """
    import warnings
    warnings.simplefilter("ignore")  # Python 3.12 warns of any fork beside threads
    threading.Thread(target=forever, daemon=True).start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            mine = np.zeros(source.size, np.float32)
            kernels.convert(source, mine)
            threads = len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 3
            del kernels  # the parent's workers are not waited for
            os._exit(0 if np.array_equal(mine, source) and threads == 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("done")
    """
    assert python(textwrap.dedent(PASSES) + textwrap.dedent(code)) == "done"


def test_the_interpreter_ends_in_peace_with_kernels_alive_and_a_pass_running() -> None:
    code = """
    for _ in range(2):
        threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.05)
    print("done")
    """
    for _ in range(5):
        assert python(textwrap.dedent(PASSES) + textwrap.dedent(code)) == "done"


# --- chunks


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 2**31 - 1, 2**31, 2**31 + 1, 2**33 + 5, 2**62 + 3])
def test_h11_chunks_cover_every_element_once_beyond_31_bits_too(length: int) -> None:
    chunk = 32 if length < 2**20 else 2**20
    count = _kernels.chunk_bounds(length, chunk, 0)[0]
    assert count == -(-length // chunk)
    near_the_ends = {i for i in (0, 1, count // 2, count - 2, count - 1) if 0 <= i < count}
    for index in near_the_ends:
        _, begin, end = _kernels.chunk_bounds(length, chunk, index)
        assert (begin, end) == (index * chunk, min(length, (index + 1) * chunk))


@pytest.mark.parametrize("chunk", [0, -32, 33])
def test_a_chunk_that_would_share_cache_lines_is_refused(chunk: int) -> None:
    with pytest.raises(ContractError, match=f"multiple of 32 elements, not {chunk}"):
        _kernels.Kernels("plain", 1, chunk)


# --- bad arguments

N = 40


def floats() -> np.ndarray:
    return np.zeros(N, np.float32)


READ_ONLY = floats()
READ_ONLY.setflags(write=False)
UNALIGNED = np.zeros(4 * N + 1, np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": np.zeros(N)}, "m has element code 'd': use float32"),
        ({"m": np.zeros(N, np.uint16)}, "m holds uint16 .* must hold float32"),
        ({"g": np.zeros(N, np.int32)}, "g has element code 'i'"),
        ({"g": np.zeros(N, ">f4")}, "g has element code '>f'"),
        ({"v": np.zeros(N + 1, np.float32)}, "v has 41 elements, but m has 40"),
        ({"g": np.zeros(0, np.float16)}, "g has 0 elements, but m has 40"),
        ({"m": np.zeros(2 * N, np.float32)[::2]}, "m must be a flat, contiguous.*not C-contiguous"),
        ({"m": np.zeros((5, 8), np.float32)}, "m must be flat, but has 2 dimensions"),
        ({"m": READ_ONLY}, "m must be a flat, contiguous, writable.*read-only"),
        ({"v": UNALIGNED}, "v is not aligned"),
        ({"g": None}, "g must be a flat, contiguous numpy array"),
        ({"g": [0.0] * N}, "g must be a flat, contiguous numpy array"),
    ],
)
def test_bad_arrays_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    arrays: dict[str, Any] = {"m": floats(), "v": floats(), "g": floats(), **arguments}
    with pytest.raises(ContractError, match=message):
        KernelArithmetic(threads=1).fold(**arrays, c=FOLD, scale=1.0, first=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda k, a: k.fold(a[:N], a[N - 1 : 2 * N - 1], floats(), FOLD, scale=1.0, first=True),
        lambda k, a: k.apply(a[:N], a[:N], floats(), APPLY, None),
        lambda k, a: k.apply(a[:N], floats(), floats(), APPLY, a[:N].view(np.uint16)[:N]),
        lambda k, a: k.accumulate(a[:N], a[1 : N + 1], first=False),
        lambda k, a: k.convert(a[:N], a[:N]),
    ],
)
def test_sections_that_share_memory_are_refused_and_left_alone(call: Callable[..., None]) -> None:
    memory = np.arange(2 * N, dtype=np.float32)
    with pytest.raises(ContractError, match="shares memory with"):
        call(KernelArithmetic(threads=1), memory)
    assert np.array_equal(memory, np.arange(2 * N, dtype=np.float32))


def test_inputs_may_share_memory_and_be_read_only() -> None:
    made = KernelArithmetic(threads=1)
    p = floats()
    made.apply(p, READ_ONLY, READ_ONLY, APPLY, None)
    made.convert(READ_ONLY, p)


def test_an_fp32_wire_and_a_change_between_16_bit_formats_are_refused() -> None:
    made = KernelArithmetic(threads=1)
    with pytest.raises(ContractError, match="wire must be uint16"):
        made.apply(floats(), floats(), floats(), APPLY, floats())
    with pytest.raises(ContractError, match="through float32"):
        made.convert(np.zeros(N, np.uint16), np.zeros(N, np.float16))


# --- kernels that are slow, or not there (H1, H3)


def test_h3_falling_back_to_plain_code_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "instruction_sets", lambda: ("plain",))
    kernels._warn_of_plain.cache_clear()
    with pytest.warns(RuntimeWarning, match="plain code, slower"):
        assert KernelArithmetic(threads=1).instruction_set == "plain"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelArithmetic(threads=1)
        KernelArithmetic(threads=1, instruction_set="plain")


def test_h1_missing_kernels_are_reported_with_their_cause_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cause = ImportError("_kernels.so: undefined symbol: sqrtf")
    monkeypatch.setattr(kernels, "_missing", cause)
    assert instruction_sets() == ()
    with pytest.raises(RelayEpsError, match=r"undefined symbol: sqrtf.*Install") as caught:
        KernelArithmetic()
    assert caught.value.__cause__ is cause
