"""Layouts, and the three that there are: nothing overlaps, and what tools expect is where they expect it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relay_eps_hw.interface.codes import Opcode
from relay_eps_hw.interface.descriptors import ALIGNMENT, DESCRIPTOR, RECORD, SCALARS
from relay_eps_hw.interface.layout import Field, Layout, Place
from relay_eps_hw.interface.registers import IDENTITY, Access, registers
from relay_eps_hw.lane import beat
from relay_eps_hw.lane.beat import Operation


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ((Place("a", 0, ""), Place("b", 0, "")), r"block\.b is out of order, overlaps a"),
        ((Place("a", 0, "", words=2), Place("b", 4, "")), r"block\.b is out of order, overlaps a"),
        ((Place("a", 0, ""), Place("a", 4, "")), "block has a twice"),
        ((Place("a", 62, "", words=1),), r"block\.a is out of order, overlaps its start or stands outside"),
        ((Place("a", 2, ""),), r"block\.a is not one or two whole words"),
        ((Place("a", 0, "", words=3),), r"block\.a is not one or two whole words"),
        ((Place("a", 0, "", fields=(Field("x", 30, 3, ""),)),), r"block\.a\.x is .* stands outside"),
        ((Place("a", 0, "", fields=(Field("x", 0, 2, ""), Field("y", 1, 1, ""))),), r"block\.a\.y .* overlaps x"),
        ((Place("a", 0, "", fields=(Field("x", 0, 0, ""),)),), r"block\.a\.x is"),
    ],
)
def test_places_and_fields_that_do_not_fit_are_refused(places: tuple[Place, ...], message: str):
    with pytest.raises(ValueError, match=message):
        Layout("block", 64, "", places)


def test_a_place_is_found_by_its_name():
    assert DESCRIPTOR["length"].offset == 8
    with pytest.raises(KeyError, match="descriptor has no 'lenght'; it has operation, tag, length"):
        DESCRIPTOR["lenght"]


def test_blocks_in_memory_are_as_large_as_they_are_aligned_or_twice():
    assert (DESCRIPTOR.size, RECORD.size) == (2 * ALIGNMENT, ALIGNMENT)


def test_every_address_is_aligned_to_itself():
    for layout in (DESCRIPTOR, RECORD):
        assert all(place.offset % (4 * place.words) == 0 for place in layout)


def test_a_kernel_has_its_control_words_and_arguments_where_vitis_expects_them():
    control = [(place.name, place.offset) for place in registers(Access.PROTOCOL)]
    assert control == [("control", 0), ("interrupt_enable", 4), ("interrupt_mask", 8), ("interrupt_status", 12)]
    at = 0x10
    for argument in registers(Access.ARGUMENT):
        assert argument.offset == at
        # Each argument is followed by a reserved word.
        at = argument.end + 4


def test_the_scalars_and_operations_are_the_lanes_own():
    assert SCALARS == beat.SCALARS
    assert {operation.name: operation.value for operation in Operation}.items() <= {
        opcode.name: opcode.value for opcode in Opcode
    }.items()


def test_the_identity_spells_the_name():
    assert IDENTITY.to_bytes(4, "little") == b"REPS"


def test_the_tables_need_no_amaranth():
    command = "import sys, relay_eps_hw.interface.registers; sys.exit('amaranth' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False, timeout=60).returncode == 0
