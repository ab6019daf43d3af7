"""Gradients are packed as the EPS layers lie, and summed in the order in which they come."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from relay_eps.errors import RelayError
from relay_eps.relay import Relay
from relay_eps.relay.gradients import BufferPool, GradientBuffer, GradientSum
from tests.host.relay.plans import plans_of

CPU = torch.device("cpu")


def parts_of(model: nn.Module) -> tuple[GradientBuffer, GradientSum]:
    (plan,) = plans_of(model, [model])
    buffer = GradientBuffer(sum(e.layout.size for e in plan.own), CPU)
    return buffer, GradientSum(buffer, plan.own, torch.float32)


def gradients(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g) for shape in shapes]


@given(st.integers(1, 5), st.integers(0, 2**16))
def test_the_sum_is_autograds_accumulation(count: int, seed: int) -> None:
    _, total = parts_of(nn.Linear(3, 5))
    given = [gradients(seed + i, (5, 3), (5,)) for i in range(count)]
    expected = [g.clone() for g in given[0]]
    for i, parts in enumerate(given):
        total.add(i, parts)
        if i:
            for e, g in zip(expected, parts, strict=True):
                e += g
    assert all(torch.equal(v, e) for v, e in zip(total.views, expected, strict=True))
    assert total.flat[:15].equal(expected[0].flatten())
    assert total.flat[15:32].eq(0).all()
    assert total.flat[32:37].equal(expected[1])
    assert total.flat[37:].eq(0).all()


def test_padding_is_cleared_in_a_buffer_full_of_anything() -> None:
    (plan,) = plans_of(model := nn.Linear(3, 5), [model])
    buffer = GradientBuffer(64, CPU)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        buffer.flat(plan.own, torch.float32).fill_(float("nan"))
        total = GradientSum(buffer, plan.own, dtype)
        total.add(0, gradients(0, (5, 3), (5,)))
        assert total.flat.dtype == dtype
        assert total.flat.isfinite().all()


def test_a_tensor_that_got_nothing_is_zero_and_named_a_part_that_got_nothing_is_not_present() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False).requires_grad_(False))
    buffer, total = parts_of(model)
    buffer.flat(total.parts, torch.float32).fill_(float("nan"))
    total.add(0, [None, None])
    assert total.empty
    assert total.got_gradient() == [False]
    total.add(1, [torch.ones(2, 2), None])
    assert total.finish() == ["0.bias"]
    assert total.views[1].eq(0).all()
    assert total.got_gradient() == [True]


def test_a_tensor_that_gets_its_first_gradient_late_is_copied_then() -> None:
    buffer, total = parts_of(nn.Linear(2, 2))
    buffer.flat(total.parts, torch.float32).fill_(float("nan"))
    ones = torch.ones(2, 2)
    total.add(0, [ones, None])
    total.add(1, [ones, torch.ones(2)])
    total.add(2, [None, torch.ones(2)])
    assert total.views[0].eq(2).all()
    assert total.views[1].eq(2).all()
    assert total.finish() == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_largest_magnitude_is_finite_exactly_while_everything_is(bad: float) -> None:
    _, total = parts_of(nn.Linear(3, 5))
    good = [-3 * torch.ones(5, 3), torch.ones(5)]
    total.add(0, good)
    spoilt = torch.zeros(5)
    spoilt[2] = bad
    total.add(4, [good[0], spoilt])
    assert [(micro, bool(np.isfinite(float(m)))) for micro, m in total.largest] == [(0, True), (4, False)]
    assert float(total.largest[0][1]) == 3


def test_the_largest_magnitude_shows_a_sum_that_overflowed() -> None:
    _, total = parts_of(nn.Linear(1, 1))
    huge = [torch.full((1, 1), 3e38), torch.zeros(1)]
    total.add(0, huge)
    total.add(1, huge)
    assert [bool(np.isfinite(float(m))) for _, m in total.largest] == [True, False]


def test_gradients_of_empty_tensors_are_fine() -> None:
    _, total = parts_of(nn.ParameterList([nn.Parameter(torch.zeros(0, 3))]))
    total.add(0, [torch.zeros(0, 3)])
    assert float(total.largest[0][1]) == 0


def test_a_sparse_gradient_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    with Relay(model) as relay, pytest.raises(RelayError, match=r"gradient of 0\.weight is sparse.*use sparse=False"):
        relay.step(torch.tensor([1, 2]), torch.tensor([0, 1]), nn.functional.cross_entropy)


# --- the pool


def test_take_waits_until_a_buffer_is_given_back() -> None:
    pool = BufferPool(2, 10, CPU)
    assert pool.nbytes == 80
    first, second = pool.take(), pool.take()
    taken = []
    thread = threading.Thread(target=lambda: taken.append(pool.take()))
    thread.start()
    thread.join(0.05)
    assert not taken
    pool.give(second)
    thread.join(5)
    assert taken == [second]
    assert first is not second


def test_after_a_failure_every_buffer_is_free_again() -> None:
    pool = BufferPool(2, 1, CPU)
    pool.take()
    pool.reclaim()
    assert pool.take() is not pool.take()
