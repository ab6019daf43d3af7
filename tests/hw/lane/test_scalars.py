"""The scalars' entry: what is refused, and that replaced scalars make every operation of one datapath."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from relay_eps.eps import golden
from relay_eps.eps.hyper import AdamHyper, ApplyScalars, FoldScalars
from relay_eps_hw.floats.formats import FP32
from relay_eps_hw.lane.beat import SCALARS, SIGNED, Operation
from relay_eps_hw.lane.scalars import ScalarEntry

SMALLEST_NORMAL = 0x0080_0000
LARGEST = 0x7F7F_FFFF
NEGATIVE = 0x8000_0000

#: Operands where zeros' signs, subnormals, infinities and NaNs could tell a copy from a computation.
EDGES = np.array(
    [0, 1, 0x007F_FFFF, SMALLEST_NORMAL, 0x3F80_0000, 0x3F80_0001, LARGEST, FP32.infinity, 0x7FC0_0000], np.uint32
)
SIGNED_EDGES = np.concatenate([EDGES, EDGES | NEGATIVE])


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def entered(operation: Operation, first: bool, scalars: dict[str, int]) -> dict[str, int]:
    """What comes out of ScalarEntry: the scalars, ``outside``, and which operands are replaced."""
    dut = ScalarEntry(FP32)
    sim = Simulator(dut)
    sim.add_clock(1e-6)
    seen: dict[str, int] = {}

    async def bench(ctx):
        ctx.set(dut.operation, operation)
        ctx.set(dut.first, first)
        ctx.set(dut.i, scalars)
        for name in ("no_g", "no_m", "no_v"):
            seen[name] = ctx.get(getattr(dut, name))
        await ctx.tick().repeat(2)
        seen.update({name: ctx.get(dut.o[name]) for name in SCALARS})
        seen["outside"] = ctx.get(dut.outside)

    sim.add_testbench(bench)
    sim.run()
    return seen


def contract_scalars() -> dict[str, int]:
    hyper = AdamHyper(lr=3e-3, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1)
    fold, apply = hyper.fold_scalars(), hyper.apply_scalars(3)
    values = {"scale": 0.25, **vars(fold), **vars(apply)}
    return {name: bits(values[name]) for name in SCALARS}


def operands(signed_v: bool) -> tuple[np.ndarray, ...]:
    """g, m, v and p in all combinations of the edges; v is never negative where it is a v."""
    v = SIGNED_EDGES if signed_v else EDGES
    grid = np.meshgrid(SIGNED_EDGES, SIGNED_EDGES, v, SIGNED_EDGES, indexing="ij")
    return tuple(axis.ravel().view(np.float32) for axis in grid)


def datapath(seen: dict[str, int], g, m, v, p):
    """A fold and an apply with the scalars and operands that ScalarEntry gave."""
    c = {name: float(np.uint32(seen[name]).view(np.float32)) for name in SCALARS}
    negative_zero = np.full_like(g, -0.0)
    g = negative_zero if seen["no_g"] else g
    m = negative_zero if seen["no_m"] else m
    if seen["no_v"]:
        m = v = np.zeros_like(g)
    fold = FoldScalars(c["b1"], c["c1"], c["b2"], c["c2"])
    m, v = golden.fold(m, v, g, fold, scale=c["scale"], first=True)
    return m, v, golden.apply(p, m, v, ApplyScalars(c["r2"], c["eps"], c["k"], c["s"]))


def equal(got, wanted) -> bool:
    both_nan = np.isnan(got) & np.isnan(wanted)
    return bool(np.all((got.view(np.uint32) == wanted.view(np.uint32)) | both_nan))


@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
def test_a_fold_decays_the_moments_only_where_it_is_the_first(first: bool):
    scalars = contract_scalars()
    seen = entered(Operation.FOLD, first, scalars)
    g, m, v, p = operands(signed_v=False)
    c = FoldScalars(*(float(np.uint32(scalars[name]).view(np.float32)) for name in ("b1", "c1", "b2", "c2")))
    want_m, want_v = golden.fold(m, v, g, c, scale=0.25, first=first)
    got_m, got_v, _ = datapath(seen, g, m, v, p)
    assert equal(got_m, want_m)
    assert equal(got_v, want_v)


def test_an_apply_leaves_the_moments_as_they_are():
    scalars = contract_scalars()
    seen = entered(Operation.APPLY, True, scalars)
    g, m, v, p = operands(signed_v=False)
    c = ApplyScalars(*(float(np.uint32(scalars[name]).view(np.float32)) for name in ("r2", "eps", "k", "s")))
    got_m, got_v, got_p = datapath(seen, g, m, v, p)
    assert equal(got_m, m)
    assert equal(got_v, v)
    assert equal(got_p, golden.apply(p, m, v, c))


def test_an_apply_with_a_negative_scale_left_in_the_scalars_is_the_same():
    scalars = contract_scalars()
    plain = entered(Operation.APPLY, False, scalars)
    other = entered(Operation.APPLY, False, scalars | {"scale": bits(-3.0)})
    assert plain == other


@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
def test_a_sum_starts_with_the_first_gradient_and_adds_later_ones(first: bool):
    seen = entered(Operation.ACCUMULATE, first, dict.fromkeys(SCALARS, 0))
    g, m, v, p = operands(signed_v=True)
    got_m, _, _ = datapath(seen, g, m, v, p)
    assert equal(got_m, golden.accumulate(m, g, first=first))


def test_a_fetch_copies_the_weights_whatever_lies_in_the_moments():
    seen = entered(Operation.FETCH, False, dict.fromkeys(SCALARS, 0))
    g, m, v, p = operands(signed_v=True)
    _, _, got_p = datapath(seen, g, m, v, p)
    assert equal(got_p, p)


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("value", [0, SMALLEST_NORMAL, 0x3F80_0000, LARGEST], ids=hex)
def test_zero_and_normal_scalars_are_within_the_contract(name: str, value: int):
    assert not entered(Operation.FOLD_APPLY, True, contract_scalars() | {name: value})["outside"]


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize(
    "value", [1, SMALLEST_NORMAL - 1, FP32.infinity, FP32.nan, FP32.infinity + 1, NEGATIVE, NEGATIVE | 1], ids=hex
)
def test_other_scalars_are_outside_the_contract(name: str, value: int):
    assert entered(Operation.FOLD_APPLY, True, contract_scalars() | {name: value})["outside"]


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("value", [SMALLEST_NORMAL, 0x3F80_0000, LARGEST], ids=hex)
def test_only_scale_and_k_may_be_negative(name: str, value: int):
    seen = entered(Operation.FOLD_APPLY, True, contract_scalars() | {name: NEGATIVE | value})
    assert seen["outside"] == (name not in SIGNED)
