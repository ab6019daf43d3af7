"""The compiled kernels give the golden model's bits, on every instruction set, thread count, length and format."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from relay_eps.eps import golden
from relay_eps.eps.arithmetic import GoldenArithmetic
from relay_eps.eps.formats import Format, narrow, widen
from relay_eps.eps.hyper import AdamHyper, ApplyScalars, FoldScalars
from relay_eps.eps.kernels import CHUNK, KernelArithmetic, instruction_sets
from relay_eps.eps.memory import aligned_empty
from relay_eps.errors import ContractError
from tests.host.eps.bits import assert_same_bits, hard_gradient, hard_values

torch = pytest.importorskip("torch")

GOLDEN = GoldenArithmetic()
HYPER = AdamHyper(lr=3e-3, eps=1e-8, weight_decay=0.1)
FOLD, APPLY = HYPER.fold_scalars(), HYPER.apply_scalars(3)
SHORT = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 100)
LONG = (CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 13)
WIRES = (None, Format.BF16, Format.FP16)
ALL_16_BITS = np.arange(2**16, dtype=np.uint16)


@pytest.fixture(scope="module", params=instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[1, 2, 3], ids="threads={}".format)
def kernels(instruction_set: str, request: pytest.FixtureRequest) -> Iterator[KernelArithmetic]:
    made = KernelArithmetic(threads=request.param, instruction_set=instruction_set)
    yield made
    made.close()


@pytest.fixture(scope="module")
def two_threads(instruction_set: str) -> Iterator[KernelArithmetic]:
    made = KernelArithmetic(threads=2, instruction_set=instruction_set)
    yield made
    made.close()


class State:
    """Sections p, m, v and a wire copy, with one twin for each arithmetic."""

    def __init__(self, p: NDArray, m: NDArray, v: NDArray, wire: Format | None = None) -> None:
        self.names = ("p", "m", "v") if wire is None else ("p", "m", "v", "wire")
        arrays = [p, m, v] if wire is None else [p, m, v, np.zeros(p.size, wire.carrier)]
        self.golden = [a.copy() for a in arrays]
        self.tested = [a.copy() for a in arrays]

    @classmethod
    def hard(cls, rng: np.random.Generator, size: int, wire: Format | None = None) -> State:
        p, m, v = (hard_values(rng, size) for _ in range(3))
        # As the server has it, v has no sign; one in eight here still does, for the square root's sake.
        return cls(p, m, np.where(rng.integers(0, 8, size) == 0, v, np.abs(v)), wire)

    def run(self, kernels: KernelArithmetic, call: Callable[..., None]) -> None:
        """``call(arithmetic, p, m, v, wire)`` with both arithmetics, and the same bits from both."""
        for arithmetic, (p, m, v, *wire) in ((GOLDEN, self.golden), (kernels, self.tested)):
            call(arithmetic, p, m, v, wire[0] if wire else None)
        for name, got, wanted in zip(self.names, self.tested, self.golden, strict=True):
            assert_same_bits(got, wanted, name)


def sized(lengths: tuple[int, ...], formats: Any = tuple(Format)) -> Iterator[tuple[int, Format, bool, Format | None]]:
    yield from product(lengths, formats, (False, True), WIRES)


# --- every length, format, instruction set and thread count


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
def test_fold(kernels: KernelArithmetic, rng: np.random.Generator, lengths: tuple[int, ...]) -> None:
    for size, fmt, first in product(lengths, Format, (False, True)):
        g = hard_gradient(rng, size, fmt)
        for scale in (1.0, -0.25):
            State.hard(rng, size).run(
                kernels, lambda a, p, m, v, w, g=g, s=scale, f=first: a.fold(m, v, g, FOLD, scale=s, first=f)
            )


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
def test_apply(kernels: KernelArithmetic, rng: np.random.Generator, lengths: tuple[int, ...]) -> None:
    for size, wire in product(lengths, WIRES):
        State.hard(rng, size, wire).run(kernels, lambda a, p, m, v, w: a.apply(p, m, v, APPLY, w))


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
def test_fold_apply_in_one_pass(kernels: KernelArithmetic, rng: np.random.Generator, lengths: tuple[int, ...]) -> None:
    for size, fmt, first, wire in sized(lengths):
        g = hard_gradient(rng, size, fmt)
        State.hard(rng, size, wire).run(
            kernels, lambda a, p, m, v, w, g=g, f=first: a.fold_apply(p, m, v, g, FOLD, APPLY, w, scale=0.5, first=f)
        )


def test_accumulate(kernels: KernelArithmetic, rng: np.random.Generator) -> None:
    for size, fmt, first in product(SHORT + LONG, Format, (False, True)):
        g = hard_gradient(rng, size, fmt)
        State.hard(rng, size).run(kernels, lambda a, p, m, v, w, g=g, f=first: a.accumulate(p, g, first=f))


def test_convert(kernels: KernelArithmetic, rng: np.random.Generator) -> None:
    for size, source, target in product(SHORT + LONG, Format, Format):
        if Format.FP32 in (source, target) or source is target:
            values = hard_gradient(rng, size, source)
            got, wanted = np.zeros(size, target.carrier), np.zeros(size, target.carrier)
            kernels.convert(values, got)
            GOLDEN.convert(values, wanted)
            assert_same_bits(got, wanted, f"{source.value} to {target.value}")


@pytest.mark.parametrize("size", [1, 17, CHUNK + 1, 2 * CHUNK + 5001])
def test_finds_one_value_that_is_not_finite_wherever_it_lies(kernels: KernelArithmetic, size: int) -> None:
    for fmt in Format:
        largest = np.full(
            size, widen(np.array([0x7F7F], np.uint16)) if fmt is Format.BF16 else np.finfo(fmt.carrier).max
        )
        values = narrow(largest.astype(np.float32), fmt).copy()
        values[::2] *= np.array(0, values.dtype)
        assert kernels.all_finite(values)
        for position, bad in product({0, size // 2, size - 1}, (np.inf, -np.inf, np.nan)):
            kept = values[position]
            values[position] = narrow(np.array([bad], np.float32), fmt)[0]
            assert not kernels.all_finite(values), f"{bad} at {position} of {size} in {fmt.value}"
            values[position] = kept


def test_nothing_is_not_finite_in_an_empty_array(kernels: KernelArithmetic) -> None:
    assert kernels.all_finite(np.zeros(0, np.float32))


# --- any bits, any scalars

_SPECIAL_BITS = (0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000)
_BITS = st.one_of(
    st.sampled_from([b | sign for b in _SPECIAL_BITS for sign in (0, 0x80000000)]),
    st.integers(0, 2**32 - 1),
)


def contract_scalars(*, signed: bool = False) -> st.SearchStrategy[float]:
    """What the contract allows a scalar to be: finite, +0 or normal."""
    low = -float(np.finfo(np.float32).max) if signed else 0.0
    return st.floats(low, allow_nan=False, allow_infinity=False, allow_subnormal=False, width=32).map(lambda x: x + 0.0)


_FOLDS = st.builds(FoldScalars, *[contract_scalars()] * 4)
_APPLIES = st.builds(
    ApplyScalars, contract_scalars(), contract_scalars(), contract_scalars(signed=True), contract_scalars()
)


@given(
    patterns=st.integers(1, 40).flatmap(lambda n: hnp.arrays(np.uint32, (4, n), elements=_BITS)),
    fold=_FOLDS,
    apply=_APPLIES,
    scale=contract_scalars(signed=True),
    fmt=st.sampled_from(Format),
    wire=st.sampled_from(WIRES),
    first=st.booleans(),
)
def test_any_bits_under_any_scalars(
    two_threads: KernelArithmetic,
    patterns: NDArray[np.uint32],
    fold: FoldScalars,
    apply: ApplyScalars,
    scale: float,
    fmt: Format,
    wire: Format | None,
    first: bool,
) -> None:
    p, m, v, g = patterns.view(np.float32)
    if fmt is not Format.FP32:
        g = patterns[3].astype(np.uint16).view(fmt.carrier)
    State(p, m, v, wire).run(
        two_threads, lambda a, p, m, v, w: a.fold_apply(p, m, v, g, fold, apply, w, scale=scale, first=first)
    )
    State(p, m, v, wire).run(two_threads, lambda a, p, m, v, w: a.fold(m, v, g, fold, scale=scale, first=first))
    State(p, m, v, wire).run(two_threads, lambda a, p, m, v, w: a.apply(p, m, v, apply, w))
    State(p, m, v, wire).run(two_threads, lambda a, p, m, v, w: a.accumulate(p, g, first=first))


# --- the 16-bit formats, exhaustively


@pytest.mark.parametrize("fmt", [Format.BF16, Format.FP16])
def test_all_16_bit_patterns_widen_exactly(two_threads: KernelArithmetic, fmt: Format) -> None:
    values = ALL_16_BITS.view(fmt.carrier)
    for operation in ("convert", "accumulate", "add"):
        got = np.zeros(values.size, np.float32)
        if operation == "convert":
            two_threads.convert(values, got)
        else:
            two_threads.accumulate(got, values, first=operation == "accumulate")
        # An addition to +0 is exact, but makes +0 of -0.
        wanted = widen(values)
        if operation == "add":
            wanted = golden.accumulate(np.zeros_like(wanted), wanted, first=False)
        assert_same_bits(got, wanted, operation)


def around_ties(fmt: Format) -> NDArray[np.float32]:
    """Every 16-bit value and every midpoint between neighbours, each with its two fp32 neighbours on either side."""
    exact = widen(ALL_16_BITS.view(fmt.carrier)).view(np.uint32)
    magnitudes = widen(ALL_16_BITS[: 2**15].view(fmt.carrier))
    # Above the largest comes infinity; the tie there lies where the next value would have been.
    finite = magnitudes[np.isfinite(magnitudes)].astype(np.float64)
    following = np.append(finite[1:], 2 * finite[-1] - finite[-2])
    with np.errstate(over="ignore"):
        middles = ((finite + following) / 2).astype(np.float32)
    bits = np.concatenate([exact, middles.view(np.uint32), (-middles).view(np.uint32)])
    steps = np.arange(-2, 3, dtype=np.int64)
    return ((bits.astype(np.int64)[:, None] + steps) % 2**32).astype(np.uint32).ravel().view(np.float32)


@pytest.mark.parametrize("fmt", [Format.BF16, Format.FP16])
def test_narrows_to_nearest_even_at_and_around_every_tie(two_threads: KernelArithmetic, fmt: Format) -> None:
    values = around_ties(fmt)
    got = np.zeros(values.size, fmt.carrier)
    two_threads.convert(values, got)
    assert_same_bits(got, narrow(values, fmt), fmt.value)
    # The wire copy of an apply goes another way through the code: with k = 1 and s = 0 it narrows p as it is.
    zero, one = np.zeros(values.size, np.float32), np.ones(values.size, np.float32)
    p, wire = values.copy(), np.zeros(values.size, fmt.carrier)
    two_threads.apply(p, zero, one, ApplyScalars(r2=1.0, eps=1.0, k=1.0, s=0.0), wire)
    assert_same_bits(wire, narrow(p, fmt), fmt.value)


# --- the caller's floating-point state


def subnormal_work(rng: np.random.Generator) -> tuple[State, NDArray[np.float32]]:
    size = 2 * CHUNK + 5
    p, m, v, g = (rng.integers(1, 2**23, size, dtype=np.uint32).view(np.float32) for _ in range(4))
    return State(p, m, v, Format.FP16), g


def run_tested(state: State, g: NDArray[np.float32], kernels: KernelArithmetic) -> None:
    """One pass with the kernels alone: the golden side must not see the state that the test sets up."""
    p, m, v, wire = state.tested
    kernels.fold_apply(p, m, v, g, FOLD, APPLY, wire, scale=1.0, first=True)


def run_golden(state: State, g: NDArray[np.float32]) -> None:
    p, m, v, wire = state.golden
    GOLDEN.fold_apply(p, m, v, g, FOLD, APPLY, wire, scale=1.0, first=True)


def test_a_caller_that_flushes_subnormals_gets_the_same_bits(instruction_set: str, rng: np.random.Generator) -> None:
    state, g = subnormal_work(rng)
    run_golden(state, g)
    smallest = np.array([1], np.uint32).view(np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        # New threads inherit the state, so the workers are made under it too.
        run_tested(state, g, KernelArithmetic(threads=2, instruction_set=instruction_set))
        still_flushes = float((smallest * np.float32(1))[0]) == 0.0
    finally:
        torch.set_flush_denormal(False)
    for name, got, wanted in zip(state.names, state.tested, state.golden, strict=True):
        assert_same_bits(got, wanted, name)
    assert still_flushes, "the caller's own setting was not put back"


def test_a_caller_that_rounds_upwards_gets_the_same_bits(instruction_set: str, rng: np.random.Generator) -> None:
    upward = {"x86_64": 0x800, "aarch64": 0x400000, "arm64": 0x400000}.get(platform.machine())
    library = ctypes.util.find_library("m")
    if upward is None or library is None:
        pytest.skip("no fesetround known here")
    libm = ctypes.CDLL(library)
    state, g = State.hard(rng, 2 * CHUNK + 5, Format.BF16), hard_values(rng, 2 * CHUNK + 5)
    run_golden(state, g)
    try:
        assert libm.fesetround(upward) == 0
        run_tested(state, g, KernelArithmetic(threads=2, instruction_set=instruction_set))
        kept = libm.fegetround()
    finally:
        libm.fesetround(0)
    for name, got, wanted in zip(state.names, state.tested, state.golden, strict=True):
        assert_same_bits(got, wanted, name)
    assert kept == upward, "the caller's own setting was not put back"


# --- lengths beyond 31 bits


def test_more_than_2_to_the_31_elements(two_threads: KernelArithmetic) -> None:
    size = 2**31 + 17
    try:
        # Never written but for one page, so it costs address space and no memory.
        values = aligned_empty(2 * size).view(np.uint16)
    except MemoryError:
        pytest.skip("the system gives no address space of 4 GiB")
    assert two_threads.all_finite(values)
    values[size - 3] = 0x7F80
    assert not two_threads.all_finite(values)


# --- which instruction sets there are


def test_all_instruction_sets_of_this_cpu_are_offered_best_first() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        pytest.skip("reads /proc/cpuinfo of an x86 CPU")
    flags = set(next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split())
    needs = {"avx512": {"avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"}, "avx2": {"avx2", "f16c"}}
    assert instruction_sets() == (*(name for name, need in needs.items() if need <= flags), "plain")


def test_the_best_instruction_set_is_the_default_and_the_name_says_it() -> None:
    kernels = KernelArithmetic(threads=2)
    assert kernels.instruction_set == instruction_sets()[0]
    assert kernels.name == f"{instruction_sets()[0]}, 2 threads"
    assert KernelArithmetic(threads=1, instruction_set="plain").name == "plain, 1 thread"


def test_an_unknown_instruction_set_is_refused_with_those_there_are() -> None:
    with pytest.raises(ContractError, match=f"'sse9'.*{', '.join(instruction_sets())}"):
        KernelArithmetic(instruction_set="sse9")
