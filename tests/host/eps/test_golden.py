"""The golden model: that it is Adam where it must be, and what AdamA makes of several micro-batches."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from relay_eps.eps import golden
from relay_eps.eps.formats import Format, narrow, widen
from relay_eps.eps.hyper import AdamHyper
from tests.host.eps.bits import assert_same_bits, hard_gradient, hard_values, same_bits

Array = NDArray[np.float32]
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def zeros(n: int) -> Array:
    return np.zeros(n, np.float32)


def gradients(rng: np.random.Generator, n: int, spread: float = 4.0) -> Array:
    """Gradients over ``2 * spread`` powers of ten."""
    return (rng.standard_normal(n) * 10.0 ** rng.uniform(-spread, spread, n)).astype(np.float32)


def fold_all(
    m: Array, v: Array, grads: list[NDArray[Any]], hyper: AdamHyper, scale: float = 1.0
) -> tuple[Array, Array]:
    """m and v after one mini-batch whose micro-batches have these gradients."""
    for i, g in enumerate(grads):
        m, v = golden.fold(m, v, g, hyper.fold_scalars(), scale=scale, first=i == 0)
    return m, v


# --- Adam


def fp32(value: float) -> float:
    """``value`` rounded to fp32 once, without numpy."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def adam(p: float, m: float, v: float, g: float, t: int, hyper: AdamHyper) -> tuple[float, float, float]:
    """Adam with decoupled weight decay on one element, written from the textbook.

    Every operation is done in float64 and rounded to fp32: for +, -, *, / and sqrt of fp32 values that is the same as
    rounding the exact result once, since float64 has more than twice the bits and two more.
    """
    b1, b2 = hyper.beta1, hyper.beta2
    m = fp32(fp32(fp32(b1) * m) + fp32(fp32(1 - b1) * g))
    v = fp32(fp32(fp32(b2) * v) + fp32(fp32(1 - b2) * fp32(g * g)))
    power1 = power2 = 1.0
    for _ in range(t):
        power1, power2 = power1 * b1, power2 * b2
    corrected = fp32(fp32(math.sqrt(v)) * fp32(1 / math.sqrt(1 - power2)))
    step = fp32(fp32(hyper.lr / (1 - power1)) * fp32(m / fp32(corrected + fp32(hyper.eps))))
    return fp32(fp32(p * fp32(1 - hyper.lr * hyper.weight_decay)) - step), m, v


@given(
    p=finite,
    grads=st.lists(st.floats(-(2.0**50), 2.0**50, width=32), min_size=1, max_size=3),
    hyper=st.sampled_from(
        [
            AdamHyper(),
            AdamHyper(lr=0.1, beta1=0.5, beta2=0.75, weight_decay=0.5),
            AdamHyper(beta1=0.0, beta2=0.0, eps=1.0, weight_decay=0.0),
        ]
    ),
)
def test_h42_with_one_micro_batch_adama_is_adam_to_the_bit(p: float, grads: list[float], hyper: AdamHyper) -> None:
    got_p, got_m, got_v = (np.array([x], np.float32) for x in (p, 0, 0))
    want = (p, 0.0, 0.0)
    # Three steps: over those, repeated multiplication and repeated squaring make the same products.
    for t, g in enumerate(grads, start=1):
        got_m, got_v = fold_all(got_m, got_v, [np.array([g], np.float32)], hyper)
        got_p = golden.apply(got_p, got_m, got_v, hyper.apply_scalars(t))
        want = adam(*want, g, t, hyper)
        for got, wanted in zip((got_p, got_m, got_v), want, strict=True):
            assert_same_bits(got, np.array([wanted], np.float32), f"step {t}")


#: Units in the last place between the golden rule and torch.optim.AdamW after five steps, of the largest magnitude that
#: the element and its addends have had. Each side rounds about seven times from v to p in a step, and m and v carry
#: three or four roundings from each step before: in the worst case some 240 half units come together over five steps.
#: They seldom all have one sign: 12 were seen in 9 million elements. A wrong rule is off by thousands.
UNITS_FROM_TORCH = 24


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("spread", [0.0, 4.0])
@pytest.mark.parametrize(
    "hyper",
    [
        AdamHyper(),
        AdamHyper(lr=0.1, weight_decay=0.1),
        AdamHyper(lr=1e-2, beta1=0.5, beta2=0.9),
        AdamHyper(lr=1.0, weight_decay=0.5, eps=1e-3),
    ],
)
def test_five_steps_agree_with_torch_adamw(
    hyper: AdamHyper, spread: float, fused: bool, rng: np.random.Generator
) -> None:
    n = 20_000
    p = gradients(rng, n, 3.0)
    m, v, largest_m, largest = zeros(n), zeros(n), zeros(n), np.abs(p)
    parameter = torch.nn.Parameter(torch.from_numpy(p.copy()))
    optimizer = torch.optim.AdamW(
        [parameter],
        lr=hyper.lr,
        betas=(hyper.beta1, hyper.beta2),
        eps=hyper.eps,
        weight_decay=hyper.weight_decay,
        fused=fused,
        foreach=False,
    )
    into = hyper.fold_scalars()
    for t in range(1, 6):
        g = gradients(rng, n, spread)
        parameter.grad = torch.from_numpy(g)
        optimizer.step()
        largest_m = np.maximum.reduce([largest_m, np.abs(np.float32(into.b1) * m), np.abs(np.float32(into.c1) * g)])
        m, v = fold_all(m, v, [g], hyper)
        update = hyper.apply_scalars(t)
        p = golden.apply(p, m, v, update)
        # m cancels too: what is taken from p is as uncertain as m's largest addend made it.
        d = np.sqrt(v) * np.float32(update.r2) + np.float32(update.eps)
        largest = np.maximum.reduce([largest, np.abs(p), np.float32(update.s) * (largest_m / d)])
    difference = np.abs(p.astype(np.float64) - parameter.detach().numpy())
    assert (difference <= UNITS_FROM_TORCH * np.spacing(largest)).all(), (difference / np.spacing(largest)).max()


# --- several micro-batches


@pytest.mark.parametrize("n", [2, 4])
def test_v_of_identical_micro_batches_is_exactly_a_share_of_adams_in_the_first_step(
    n: int, rng: np.random.Generator
) -> None:
    # x + x is exact. 3x may round, but by at most half a unit of 4x, and in a tie the even neighbour is 4x itself.
    # From eight addends on the roundings no longer cancel.
    g = gradients(rng, 50_000)
    _, whole = fold_all(zeros(g.size), zeros(g.size), [g], AdamHyper())
    _, shared = fold_all(zeros(g.size), zeros(g.size), [g / np.float32(n)] * n, AdamHyper())
    assert_same_bits(shared, whole / np.float32(n))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 12, 16, 32])
def test_v_of_identical_micro_batches_stays_within_n_units_a_step_of_a_share_of_adams(
    n: int, rng: np.random.Generator
) -> None:
    whole_m, whole_v, m, v = (zeros(20_000) for _ in range(4))
    for step in range(1, 5):
        g = gradients(rng, v.size)
        whole_m, whole_v = fold_all(whole_m, whole_v, [g], AdamHyper())
        m, v = fold_all(m, v, [g / np.float32(n)] * n, AdamHyper())
        # (g/n)**2 carries n's rounding twice, 2.5 units and more for a small n.
        allowed = max(n, 6) * step * np.spacing(v).astype(np.float64)
        assert (np.abs(v - whole_v.astype(np.float64) / n) <= allowed).all()


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_h42_decay_happens_once_a_mini_batch(n: int, rng: np.random.Generator) -> None:
    hyper = AdamHyper()
    m0, v0 = gradients(rng, 1000), np.abs(gradients(rng, 1000))
    m, v = fold_all(m0, v0, [zeros(1000)] * n, hyper)
    assert_same_bits(m, np.float32(hyper.beta1) * m0)
    assert_same_bits(v, np.float32(hyper.beta2) * v0)


def test_h42_decay_by_a_root_of_beta_on_each_micro_batch_is_another_rule(rng: np.random.Generator) -> None:
    n = 4
    hyper, rooted = AdamHyper(), AdamHyper(beta1=0.9 ** (1 / n), beta2=0.999 ** (1 / n))
    grads: list[NDArray[Any]] = [gradients(rng, 1000, 0.0) for _ in range(n)]
    m, v = fold_all(zeros(1000), zeros(1000), grads, hyper)
    wrong_m, wrong_v = zeros(1000), zeros(1000)
    for g in grads:
        wrong_m, wrong_v = golden.fold(wrong_m, wrong_v, g, rooted.fold_scalars(), scale=1.0, first=True)
    # The gradients enter with 1 - beta**(1/N), about a share of 1/N.
    assert np.median(np.abs(wrong_m / m)) < 0.5
    assert np.median(wrong_v / v) < 0.5


@pytest.mark.parametrize("n", [1, 3])
def test_h42_weight_decay_is_decoupled_and_applied_once(n: int, rng: np.random.Generator) -> None:
    hyper = AdamHyper(lr=0.125, weight_decay=0.5)
    p = gradients(rng, 1000)
    m, v = fold_all(zeros(1000), zeros(1000), [zeros(1000)] * n, hyper)
    assert not m.any()
    assert not v.any()
    assert_same_bits(golden.apply(p, m, v, hyper.apply_scalars(1)), p * np.float32(1 - 0.125 * 0.5))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_h42_every_weight_with_a_gradient_moves(n: int, rng: np.random.Generator) -> None:
    # Decay would take back a step of its own size.
    hyper = AdamHyper(weight_decay=0.0)
    p = rng.standard_normal(1000, np.float32)
    m, v = zeros(1000), zeros(1000)
    for t in range(1, 4):
        grads: list[NDArray[Any]] = [gradients(rng, 1000, 1.0) for _ in range(n)]
        m, v = fold_all(m, v, grads, hyper)
        moved = golden.apply(p, m, v, hyper.apply_scalars(t))
        # Gradients can cancel in m to a step below a weight's last place, with no fault of the rule's.
        steps = np.abs(m) > 1e-3 * np.sqrt(v)
        assert steps.mean() > 0.9
        assert (moved != p)[steps].all()
        p = moved


def test_steps_on_identical_micro_batches_are_sqrt_n_larger(rng: np.random.Generator) -> None:
    n, hyper = 4, AdamHyper(eps=0.0, weight_decay=0.0)
    g = gradients(rng, 1000, 2.0)
    steps = []
    for grads in ([g], [g / np.float32(n)] * n):
        m, v = fold_all(zeros(1000), zeros(1000), list(grads), hyper)
        steps.append(-golden.apply(zeros(1000), m, v, hyper.apply_scalars(1)))
    np.testing.assert_allclose(steps[1], math.sqrt(n) * steps[0], rtol=1e-6)


def test_v_scale_multiplies_what_enters_v(rng: np.random.Generator) -> None:
    g, m0, v0 = gradients(rng, 1000), gradients(rng, 1000), np.abs(gradients(rng, 1000))
    m, v = fold_all(m0, v0, [g], AdamHyper(beta2=0.5, v_scale=4.0))
    plain_m, _ = fold_all(m0, v0, [g], AdamHyper(beta2=0.5))
    assert_same_bits(m, plain_m)
    assert_same_bits(v, np.float32(0.5) * v0 + np.float32(2.0) * (g * g))


# --- operations


def test_scale_multiplies_the_gradient_first(rng: np.random.Generator) -> None:
    g, m, v = gradients(rng, 1000), gradients(rng, 1000), np.abs(gradients(rng, 1000))
    scaled = fold_all(m, v, [g], AdamHyper(), scale=-0.1)
    by_hand = fold_all(m, v, [g * np.float32(-0.1)], AdamHyper())
    assert_same_bits(scaled[0], by_hand[0])
    assert_same_bits(scaled[1], by_hand[1])


@pytest.mark.parametrize("fmt", list(Format))
def test_gradients_of_every_format_count_as_their_fp32_values(fmt: Format, rng: np.random.Generator) -> None:
    g = hard_gradient(rng, 5000, fmt)
    m, v = hard_values(rng, 5000), np.abs(hard_values(rng, 5000))
    for first in (True, False):
        got = golden.fold(m, v, g, AdamHyper().fold_scalars(), scale=1.0, first=first)
        wanted = golden.fold(m, v, widen(g).copy(), AdamHyper().fold_scalars(), scale=1.0, first=first)
        assert same_bits(got[0], wanted[0])
        assert same_bits(got[1], wanted[1])
        assert_same_bits(
            golden.accumulate(m, g, first=first), widen(g) if first else golden.accumulate(m, widen(g), first=False)
        )


def test_accumulating_copies_the_first_and_adds_the_others_in_order(rng: np.random.Generator) -> None:
    grads = [gradients(rng, 1000) for _ in range(4)]
    total = hard_values(rng, 1000)
    for i, g in enumerate(grads):
        total = golden.accumulate(total, narrow(g, Format.FP32), first=i == 0)
    assert_same_bits(total, ((grads[0] + grads[1]) + grads[2]) + grads[3])
    first = golden.accumulate(total, grads[0], first=True)
    assert not np.shares_memory(first, grads[0])


def test_subnormals_are_kept() -> None:
    tiny = np.array([1e-45, -1e-40, 1e-39], np.float32)
    hyper = AdamHyper(beta1=0.5, beta2=0.5)
    m, _ = fold_all(tiny * np.float32(2), zeros(3), [zeros(3)], hyper)
    assert_same_bits(m, tiny)
    p = golden.apply(tiny, zeros(3), zeros(3), AdamHyper(weight_decay=0.0).apply_scalars(1))
    assert_same_bits(p, tiny)


def test_nan_and_infinity_spread_without_warnings() -> None:
    g = np.array([np.nan, np.inf, -np.inf, 3e38], np.float32)
    m, v = fold_all(zeros(4), zeros(4), [g], AdamHyper())
    p = golden.apply(zeros(4), m, v, AdamHyper().apply_scalars(1))
    assert np.isnan(m[0])
    assert np.isnan(v[0])
    assert np.isinf(v[1:]).all(), "the square overflows"
    assert np.isnan(p[:3]).all()
    assert p[3] == 0.0
