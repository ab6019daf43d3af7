"""Layouts: where tensors lie in a flat section."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_eps.eps.formats import Format
from relay_eps.eps.layout import ALIGN_BYTES, ALIGN_ELEMENTS, LayerLayout, TensorSpec
from relay_eps.errors import ContractError

shapes = st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=8)


def layout(shapes: list[tuple[int, ...]]) -> LayerLayout:
    return LayerLayout("layer", tuple(TensorSpec(f"t{i}", shape) for i, shape in enumerate(shapes)))


@given(shapes)
def test_every_tensor_starts_on_64_bytes_in_every_format(shapes: list[tuple[int, ...]]) -> None:
    for slot in layout(shapes).slots:
        for fmt in Format:
            assert slot.start * fmt.itemsize % ALIGN_BYTES == 0


@given(shapes)
def test_tensors_and_gaps_cover_the_section_once_and_in_order(shapes: list[tuple[int, ...]]) -> None:
    one = layout(shapes)
    tensors = [(slot.start, slot.stop) for slot in one.slots if slot.spec.size]
    covered = sorted([*tensors, *one.gaps()])
    assert [i for start, stop in covered for i in range(start, stop)] == list(range(one.size))
    assert [slot.spec for slot in one.slots] == list(one.tensors)
    assert all(stop - start < ALIGN_ELEMENTS for start, stop in one.gaps())


@given(shapes)
def test_sizes_add_up(shapes: list[tuple[int, ...]]) -> None:
    one = layout(shapes)
    assert one.parameters == sum(prod(shape) for shape in shapes)
    assert one.size == one.parameters + sum(stop - start for start, stop in one.gaps())
    for fmt in Format:
        assert one.nbytes(fmt) == one.size * fmt.itemsize


def test_a_scalar_has_one_element_and_a_layer_of_nothing_none() -> None:
    assert layout([()]).parameters == 1
    assert layout([()]).size == ALIGN_ELEMENTS
    assert layout([]).size == 0
    assert layout([(0, 5)]).size == 0


@pytest.mark.parametrize("elements", [2**31 - 1, 2**31, 2**31 + 1, 2**40])
def test_h11_offsets_beyond_32_bits_are_exact(elements: int) -> None:
    one = layout([(elements,), (3,)])
    assert one.slots[1].start >= elements
    assert one.slots[1].start - elements < ALIGN_ELEMENTS
    assert one.nbytes(Format.FP32) == 4 * one.size


def test_a_layer_needs_a_name() -> None:
    with pytest.raises(ContractError, match="name"):
        LayerLayout("", ())


def test_a_tensor_is_named_once() -> None:
    with pytest.raises(ContractError, match=r"'block'.*twice: weight"):
        LayerLayout("block", (TensorSpec("weight", (2,)), TensorSpec("bias", (2,)), TensorSpec("weight", (3,))))


def test_dimensions_are_not_negative() -> None:
    with pytest.raises(ContractError, match=r"'block'.*'weight'.*negative"):
        LayerLayout("block", (TensorSpec("weight", (2, -1)),))
