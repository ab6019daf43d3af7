"""Where registers are put, and that a pipeline keeps its promises."""

from __future__ import annotations

from itertools import combinations

import pytest
from amaranth.hdl import Cat, Const, Module, Signal
from hypothesis import given
from hypothesis import strategies as st

from relay_eps_hw.floats.pipeline import Pipeline, carried, place_registers


def heaviest(weights: list[int], places: tuple[bool, ...]) -> int:
    """The weight of the heaviest run of steps between two registers."""
    runs, run = [], 0
    for weight, registered in zip(weights, places, strict=True):
        run += weight
        if registered:
            runs.append(run)
            run = 0
    assert run == 0, "a register stands after the last step"
    return max(runs)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_registers_stand_where_the_heaviest_run_between_two_is_lightest(weights: list[int], data: st.DataObject):
    depth = data.draw(st.integers(1, len(weights)))
    places = place_registers(weights, depth)
    assert sum(places) == depth
    last = len(weights) - 1
    others = [
        tuple(step in (*inside, last) for step in range(len(weights)))
        for inside in combinations(range(last), depth - 1)
    ]
    assert heaviest(weights, places) == min(heaviest(weights, other) for other in others)


def test_a_pipeline_that_was_not_built_to_its_end_is_noticed():
    p = Pipeline(Module(), Const(1), (1, 1), 2)
    p.cut(a=Signal(3))
    with pytest.raises(AssertionError, match="1 of 2 steps were built"):
        p.finish()


def test_values_keep_their_names_widths_and_signs_over_a_step():
    p = Pipeline(Module(), Const(1), (1,), 1)
    s = p.cut(a=Signal(3), b=Signal(4).as_signed(), nothing=Const(0, 0))
    assert (len(s.a), len(s.b), len(s.nothing)) == (3, 4, 0)
    assert s.b.shape().signed
    assert carried(s, ("a",)) == {"a": s.a}


def test_only_what_is_more_than_a_signal_is_shared():
    p = Pipeline(Module(), Const(1), (1,), 1)
    signal = Signal(3)
    assert p.share(signal) is signal
    assert isinstance(p.share(Cat(signal, signal)), Signal)
    nothing = Const(0, 0)
    assert p.share(nothing) is nothing
