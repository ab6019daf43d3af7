"""Hyper-parameters: what is refused, and that the scalars are the float64 values rounded once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_eps.eps.hyper import AdamHyper, power, scalar
from relay_eps.errors import ContractError

TINY = float(np.finfo(np.float32).tiny)
HUGE = float(np.finfo(np.float32).max)
betas = st.floats(0, 1, exclude_max=True)


def units_apart(a: float, b: float) -> float:
    return abs(a - b) / math.ulp(max(abs(a), abs(b)))


@given(base=st.floats(0.5, 1, exclude_max=True), exponent=st.integers(0, 1000))
def test_power_is_near_the_exact_power(base: float, exponent: int) -> None:
    exact = Fraction(base) ** exponent
    # Each of the at most 2 log2(t) products rounds, and an early error is itself raised to the rest of the power.
    allowed = exponent * math.ulp(1.0) * float(exact)
    assert abs(Fraction(power(base, exponent)) - exact) <= Fraction(allowed)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999])
def test_scalars_from_float_powers_are_within_one_unit_of_fp32(beta: float) -> None:
    for t in [*range(1, 200), *range(200, 20_000, 97)]:
        got = AdamHyper(lr=1e-3, beta1=beta, beta2=beta).apply_scalars(t)
        for value, other in ((got.s, 1e-3 / (1 - beta**t)), (got.r2, 1 / math.sqrt(1 - beta**t))):
            assert abs(value - float(np.float32(other))) <= float(np.spacing(np.float32(value)))


@given(base=st.floats(0, 1, allow_subnormal=False), exponent=st.integers(0, 3))
def test_small_powers_are_within_one_unit_of_float_powers(base: float, exponent: int) -> None:
    assert units_apart(power(base, exponent), base**exponent) <= 1


def test_power_is_repeated_squaring_from_the_lowest_bit() -> None:
    base = 0.999
    squared = base * base
    assert power(base, 0) == 1.0
    assert power(base, 1) == base
    assert power(base, 6) == squared * (squared * squared)
    assert power(base, 7) == (base * squared) * (squared * squared)


@given(b1=betas, b2=betas, v_scale=st.floats(0, 100))
def test_fold_scalars_are_rounded_once(b1: float, b2: float, v_scale: float) -> None:
    hyper = AdamHyper(beta1=b1, beta2=b2, v_scale=v_scale)
    exact = {"b1": b1, "c1": 1 - b1, "b2": b2, "c2": (1 - b2) * v_scale}
    if any(value and float(np.float32(value)) < TINY for value in exact.values()):
        with pytest.raises(ContractError, match="exactly 0"):
            hyper.fold_scalars()
    else:
        got = hyper.fold_scalars()
        assert {name: getattr(got, name) for name in exact} == {n: float(np.float32(v)) for n, v in exact.items()}


@given(
    lr=st.floats(1e-8, 10),
    b1=st.floats(0, 0.999),
    b2=st.floats(0, 0.9999),
    wd=st.floats(0, 1),
    t=st.integers(1, 10**6),
)
def test_apply_scalars_are_rounded_once(lr: float, b1: float, b2: float, wd: float, t: int) -> None:
    got = AdamHyper(lr=lr, beta1=b1, beta2=b2, eps=1e-8, weight_decay=wd).apply_scalars(t)
    bias1, bias2 = 1 - power(b1, t), 1 - power(b2, t)
    assert got.r2 == float(np.float32(1 / math.sqrt(bias2)))
    assert got.eps == float(np.float32(1e-8))
    assert got.s == float(np.float32(lr / bias1))
    exact_k = 1 - lr * wd
    assert got.k == float(np.float32(exact_k))


def test_applies_are_counted_from_one() -> None:
    with pytest.raises(ContractError, match="from 1, not 0"):
        AdamHyper().apply_scalars(0)


@pytest.mark.parametrize("name", ["beta1", "beta2"])
@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, math.nan, math.inf])
def test_a_beta_outside_0_to_1_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ContractError, match=rf"{name} must be .*{value}"):
        AdamHyper(**{name: value})


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay", "v_scale"])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, -math.inf])
def test_a_negative_or_infinite_hyper_parameter_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ContractError, match=f"{name} must be finite and not negative"):
        AdamHyper(**{name: value})


@given(st.one_of(st.floats(TINY, HUGE), st.just(0.0)))
def test_a_scalar_is_rounded_to_nearest_fp32(value: float) -> None:
    got = scalar("x", value)
    assert got == float(np.float32(value))
    assert math.copysign(1, got) == 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3.5e38, -3.5e38, 1e300])
def test_a_scalar_that_fp32_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ContractError, match="fp32 cannot hold"):
        scalar("x", value, signed=True)


@pytest.mark.parametrize("value", [1e-39, TINY / 2, 1e-46, 1e-300, 5e-324])
def test_a_subnormal_scalar_is_refused_not_flushed(value: float) -> None:
    with pytest.raises(ContractError, match=r"x is .*exactly 0"):
        scalar("x", value)
    with pytest.raises(ContractError, match=r"x is .*exactly 0"):
        scalar("x", -value, signed=True)


def test_only_k_and_scale_may_be_negative() -> None:
    assert scalar("k", -0.5, signed=True) == -0.5
    with pytest.raises(ContractError, match=r"x is -0\.5: it must not be negative"):
        scalar("x", -0.5)
    assert AdamHyper(lr=3.0, weight_decay=1.0).apply_scalars(1).k == -2.0


def test_zero_has_no_sign() -> None:
    assert math.copysign(1, scalar("k", -0.0, signed=True)) == 1
    assert math.copysign(1, scalar("x", -0.0)) == 1
