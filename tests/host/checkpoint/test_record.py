"""A record comes back as it was: kinds that JSON lacks are kept apart, and what cannot be kept is named."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_eps.checkpoint.record import decode, encode
from relay_eps.errors import CheckpointError

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text() | st.integers() | st.none() | st.tuples(st.integers(), st.text()) | st.just("__kind__")
records = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, st.integers()).map(Counter)
    ),
    max_leaves=12,
)


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


def kinds(value: Any) -> Any:
    """A value with the type of each part, since 1 == True == 1.0 and Counter() == {}."""
    if isinstance(value, dict):
        return (type(value), [(kinds(k), kinds(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [kinds(item) for item in value])
    return (type(value), value)


@given(records)
def test_values_types_and_order_come_back(record: Any) -> None:
    assert kinds(through_json(record)) == kinds(record)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 5e-324, 0.1, 1 / 3, -0.0])
def test_floats_come_back_bit_for_bit(value: float) -> None:
    assert through_json(value).hex() == value.hex()


def test_nan_stays_nan() -> None:
    assert math.isnan(through_json(math.nan))


@pytest.mark.parametrize(
    ("record", "where"),
    [
        ({"optimizer": {"groups": [{"lr": np.float32(1)}]}}, r"record\.optimizer\.groups\[0\]\.lr, of type float32"),
        ({"extra": (1, {2, 3})}, r"record\.extra\[1\], of type set"),
        ({"extra": {4: b""}}, r"record\.extra\[4\], of type bytes"),
        ({"extra": {b"": 1}}, r"a key of record\.extra, of type bytes"),
    ],
)
def test_what_cannot_be_kept_is_named(record: Any, where: str) -> None:
    with pytest.raises(CheckpointError, match=where):
        encode(record, "record")


def test_every_scheduler_goes_on_as_if_it_had_not_stopped() -> None:
    import torch
    from torch.optim import lr_scheduler as schedules

    def make(build: Any) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
        return optimizer, build(optimizer)

    builders = [
        lambda o: schedules.MultiStepLR(o, [2, 5, 5, 7], gamma=0.5),
        lambda o: schedules.ExponentialLR(o, 0.9),
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
        lambda o: schedules.OneCycleLR(o, 0.3, total_steps=20),
        lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=3),
        lambda o: schedules.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
        lambda o: schedules.SequentialLR(
            o, [schedules.ConstantLR(o, 0.1, 2), schedules.MultiStepLR(o, [1, 3])], milestones=[3]
        ),
        lambda o: schedules.ReduceLROnPlateau(o, patience=1),
    ]
    for build in builders:
        optimizer, scheduler = make(build)
        other, resumed = make(build)
        arguments = (1.0,) if isinstance(scheduler, schedules.ReduceLROnPlateau) else ()
        for step in range(10):
            if step == 4:
                resumed.load_state_dict(through_json(scheduler.state_dict()))
                groups = through_json([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups])
                for group, values in zip(other.param_groups, groups, strict=True):
                    group.update(values)
            for o, s in [(optimizer, scheduler)] + [(other, resumed)] * (step >= 4):
                o.step()
                s.step(*arguments)
        assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"], type(scheduler).__name__
        assert kinds(resumed.state_dict()) == kinds(scheduler.state_dict()) or isinstance(scheduler, schedules.LambdaLR)
