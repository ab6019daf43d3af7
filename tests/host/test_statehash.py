"""The state hash: equal for equal states however they are laid out, different for any bit that differs."""

from __future__ import annotations

import numpy as np
import pytest

from relay_eps.eps import AdamHyper, GoldenEPS, LayerLayout, Section, TensorSpec
from relay_eps.statehash import state_hash

A, B = TensorSpec("a", (3, 5)), TensorSpec("b", (7,))
FROZEN = LayerLayout("frozen", (TensorSpec("c", (2,)),), trainable=False)


def server(*layouts: LayerLayout) -> GoldenEPS:
    made = GoldenEPS()
    for layout in layouts:
        made.create(layout)
        values = np.zeros(layout.size, np.float32)
        for slot in layout.slots:
            values[slot.start : slot.stop] = np.arange(slot.spec.size) + ord(slot.spec.name)
        for section in (Section.P, Section.M, Section.V) if layout.trainable else (Section.P,):
            made.write(layout.name, section, values).result()
    return made


def test_the_grouping_of_tensors_into_layers_does_not_matter():
    together = server(LayerLayout("both", (A, B)), FROZEN)
    apart = server(FROZEN, LayerLayout("second", (B,)), LayerLayout("first", (A,)))
    assert state_hash(together, seed=1, step=2) == state_hash(apart, seed=1, step=2)


def test_seed_step_and_applies_matter():
    one = server(LayerLayout("x", (A,)))
    hashes = {state_hash(one, seed=1, step=1), state_hash(one, seed=2, step=1), state_hash(one, seed=1, step=2)}
    one.set_applies("x", 1)
    hashes.add(state_hash(one, seed=1, step=1))
    assert len(hashes) == 4


@pytest.mark.parametrize("section", [Section.P, Section.M, Section.V])
def test_one_bit_of_any_section_matters(section: Section):
    one = server(LayerLayout("x", (A,)))
    before = state_hash(one, seed=0, step=0)
    values = one.read("x", section).result()
    values.view(np.uint32)[14] ^= 1
    one.write("x", section, values).result()
    assert state_hash(one, seed=0, step=0) != before


def test_a_step_changes_it():
    one = server(LayerLayout("x", (A,)))
    before = state_hash(one, seed=0, step=0)
    grad = np.zeros(one.layout("x").size, np.float32)
    one.fold_apply("x", grad, AdamHyper(), first=True)
    assert state_hash(one, seed=0, step=0) != before
