"""Fields in payloads: what is packed comes out again, and lies where the layout says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_eps_sim.packing import Places, pack, unpack


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Places, int]:
    """Fields of random widths one after another, with gaps, and how many words they take."""
    places, at = {}, 0
    for number in range(draw(st.integers(1, 12))):
        at += draw(st.integers(0, 9))
        width = draw(st.integers(1, 32))
        places[f"field_{number}"] = (at, width)
        at += width
    return places, (at + 31) // 32


@given(layouts(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_every_field_comes_out_as_it_went_in(layout: tuple[Places, int], beats: int, seed: int):
    places, words = layout
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(1 << width, size=beats, dtype=np.uint64) for name, (_, width) in places.items()}
    packed = pack(places, columns, words)
    assert packed.shape == (beats, words)
    for name, column in columns.items():
        assert unpack(places, name, packed).tolist() == column.tolist()
    wanted = [sum(int(columns[name][beat]) << offset for name, (offset, _) in places.items()) for beat in range(beats)]
    assert [int.from_bytes(row.tobytes(), "little") for row in packed] == wanted


def test_fields_left_out_are_zero():
    packed = pack({"a": (0, 8), "b": (8, 8)}, {"b": np.array([7])}, 1)
    assert packed.tolist() == [[0x700]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"low": [0x1F]}, "low has values of more than the 4 bits of its field"),
        ({"low": [-1]}, r"low has values outside 0 to 2\*\*32 - 1"),
        ({"low": [1 << 32]}, r"low has values outside 0 to 2\*\*32 - 1"),
        ({"low": [1.5]}, r"low is an array of float64: pass bits, of floats \.view\(np\.uint32\)"),
        ({"middle": [1]}, "there is no field 'middle': use some of low, high"),
        ({"low": [1, 2], "high": [1]}, r"the columns of the fields have one length, not \[1, 2\]"),
        ({}, "the columns of the fields have one length, not none"),
    ],
)
def test_columns_that_the_fields_do_not_hold_are_refused(columns: dict[str, list[float]], message: str):
    places = {"low": (0, 4), "high": (4, 4)}
    with pytest.raises(ValueError, match=message):
        pack(places, {name: np.array(values) for name, values in columns.items()}, 1)
