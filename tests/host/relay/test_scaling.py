"""The loss scale moves by powers of two within its bounds, and counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_eps.errors import ContractError
from relay_eps.relay import LossScale


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4))
def test_h19_the_scale_stays_within_its_bounds_and_the_counters_are_right(finite: list[bool], interval: int) -> None:
    scale = LossScale(8.0, growth_interval=interval, smallest=2.0, largest=32.0)
    for good in finite:
        before = scale.scale
        scale.update(finite=good)
        assert scale.scale in ({before, min(before * 2, 32.0)} if good else {max(before / 2, 2.0)})
    assert scale.skipped == finite.count(False)
    tail = finite[::-1]
    assert scale.skipped_in_a_row == (tail.index(True) if True in tail else len(tail))


def test_it_doubles_after_an_interval_of_good_steps() -> None:
    scale = LossScale(4.0, growth_interval=3)
    seen = []
    for finite in (True, True, False, True, True, True, True):
        scale.update(finite=finite)
        seen.append(scale.scale)
    assert seen == [4, 4, 2, 2, 2, 4, 4]


@pytest.mark.parametrize("name", ["scale", "smallest", "largest"])
@pytest.mark.parametrize("value", [0.0, -2.0, 3.0, float("inf"), float("nan"), 2.0**16 + 1])
def test_a_scale_that_is_no_power_of_two_is_refused(name: str, value: float) -> None:
    values: dict[str, Any] = {name: value}
    with pytest.raises(ContractError, match=f"{name} must be a power of two"):
        LossScale(**values)


def test_a_scale_outside_its_bounds_is_refused() -> None:
    with pytest.raises(ContractError, match="scale must lie between 1 and 4, not at 8"):
        LossScale(8.0, largest=4.0)
    assert LossScale(2.0**-3, smallest=2.0**-4).scale == 0.125
