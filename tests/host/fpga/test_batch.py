"""Descriptors and records as bytes: every field where the interface has it, and nothing anywhere else."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_eps.fpga import interface
from relay_eps.fpga.batch import ACKNOWLEDGED, FORMATS, Descriptor, Record, Section, decode, encode, sections
from relay_eps.fpga.interface import SOURCES, Fault, Opcode, State

words = st.integers(0, (1 << 32) - 1)
descriptors = st.builds(
    Descriptor,
    opcode=st.sampled_from(Opcode),
    length=words,
    tag=words,
    first=st.booleans(),
    g_format=st.integers(0, 3),
    wire_format=st.integers(0, 3),
    pattern=words,
    addresses=st.dictionaries(st.sampled_from(interface.STREAMS), st.integers(0, (1 << 64) - 1)),
    scalars=st.dictionaries(st.sampled_from(interface.SCALARS), st.floats(width=32, allow_nan=False)),
)


def number(row: bytes, offset: int, width: int) -> int:
    return int.from_bytes(row[offset : offset + width // 8], "little")


@given(st.lists(descriptors, max_size=3))
def test_each_field_lies_where_the_interface_has_it(batch: list[Descriptor]) -> None:
    data = encode(batch)
    assert data.shape == (len(batch), interface.DESCRIPTOR_SIZE)
    assert data.dtype == np.uint8
    for descriptor, row in zip(batch, data, strict=True):
        got = {name: number(row.tobytes(), *place) for name, place in interface.DESCRIPTOR.items()}
        assert got.pop("operation") == (
            descriptor.opcode | descriptor.first << 8 | descriptor.g_format << 16 | descriptor.wire_format << 20
        )
        assert got == {
            **{name: getattr(descriptor, name) for name in ("tag", "length", "pattern")},
            **{f"{name}_address": descriptor.addresses.get(name, 0) for name in interface.STREAMS},
            **{
                name: struct.unpack("<I", struct.pack("<f", descriptor.scalars.get(name, 0.0)))[0]
                for name in interface.SCALARS
            },
        }


def test_what_no_place_takes_is_0() -> None:
    everything = Descriptor(
        Opcode.IDENTIFY,
        length=(1 << 32) - 1,
        tag=(1 << 32) - 1,
        first=True,
        g_format=3,
        wire_format=3,
        pattern=(1 << 32) - 1,
        addresses=dict.fromkeys(interface.STREAMS, (1 << 64) - 1),
        scalars=dict.fromkeys(interface.SCALARS, -math.inf),
    )
    row = encode([everything])[0]
    taken = {at for offset, width in interface.DESCRIPTOR.values() for at in range(offset, offset + width // 8)}
    assert not row[sorted({*range(interface.DESCRIPTOR_SIZE)} - taken)].any()
    assert number(row.tobytes(), 0, 32) == Opcode.IDENTIFY | 1 << 8 | 3 << 16 | 3 << 20


def test_no_descriptors_are_no_bytes() -> None:
    assert encode([]).shape == (0, interface.DESCRIPTOR_SIZE)


def test_a_scalar_is_rounded_to_the_nearest_fp32() -> None:
    offset, width = interface.DESCRIPTOR["b1"]
    row = encode([Descriptor(Opcode.FOLD, scalars={"b1": 0.9})])[0]
    assert number(row.tobytes(), offset, width) == int(np.float32(0.9).view(np.uint32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": 1 << 32}, "descriptor 1: length = 4294967296 is not an integer of 32 bits"),
        ({"length": 1.5}, "descriptor 1: length = 1.5 is not an integer"),
        ({"tag": -1}, "descriptor 1: tag = -1 is not an integer of 32 bits"),
        ({"pattern": 1 << 32}, "descriptor 1: pattern = "),
        ({"opcode": 256}, "descriptor 1: opcode = 256 is not an integer of 8 bits"),
        ({"first": 2}, "descriptor 1: first = 2 is not an integer of 1 bits"),
        ({"g_format": 4}, "descriptor 1: g_format = 4 is not an integer of 2 bits"),
        ({"wire_format": -1}, "descriptor 1: wire_format = -1"),
        ({"addresses": {"m": 1 << 64}}, "descriptor 1: m_address = .* is not an integer of 64 bits"),
        ({"addresses": {"w": 0}}, "descriptor 1: there is no stream 'w': use some of g, m, v, p, wire"),
        ({"scalars": {"lr": 0.1}}, "descriptor 1: there is no scalar 'lr': use some of scale, b1"),
        ({"scalars": {"eps": 1e39}}, r"descriptor 1: eps = 1e\+39 is not a number that fp32 can hold"),
        ({"scalars": {"eps": "1"}}, "descriptor 1: eps = '1' is not a number that fp32 can hold"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode([Descriptor(Opcode.BARRIER), Descriptor(**{"opcode": Opcode.FOLD, **given})])


ADDRESSES = {"g": 0x1000, "m": 0x2000, "v": 0x3000, "p": 0x4000, "wire": 0x5000}


def used(opcode: Opcode, **given: Any) -> dict[str, str]:
    """Bytes an element of each stream, and how it is used."""
    found = sections(Descriptor(opcode, 100, addresses={**ADDRESSES, **given.pop("addresses", {})}, **given))
    assert all(section.address == ADDRESSES[name] for name, section in found.items())
    assert [*found] == [name for name in interface.STREAMS if name in found]
    return {
        name: f"{section.nbytes // 100}{'r' * section.is_read}{'w' * section.is_written}"
        for name, section in found.items()
    }


def test_an_operation_uses_the_sections_that_it_reads_and_writes() -> None:
    assert used(Opcode.FOLD) == {"g": "4r", "m": "4rw", "v": "4rw"}
    assert used(Opcode.FOLD, first=True, g_format=1, wire_format=3) == {"g": "2r", "m": "4rw", "v": "4rw"}
    assert used(Opcode.APPLY, wire_format=2) == {"m": "4r", "v": "4r", "p": "4rw", "wire": "2w"}
    assert used(Opcode.APPLY, addresses={"wire": 0}) == {"m": "4r", "v": "4r", "p": "4rw"}
    everything = {"g": "2r", "m": "4rw", "v": "4rw", "p": "4rw"}
    assert used(Opcode.FOLD_APPLY, g_format=2) == {**everything, "wire": "4w"}
    assert used(Opcode.FOLD_APPLY, g_format=1, addresses={"wire": 0}) == everything
    assert used(Opcode.ACCUMULATE) == {"g": "4r", "m": "4rw"}
    assert used(Opcode.ACCUMULATE, first=True) == {"g": "4r", "m": "4w"}
    assert used(Opcode.FETCH, wire_format=1, g_format=3) == {"p": "4r", "wire": "2w"}
    assert used(Opcode.COPY, wire_format=1) == {"p": "4r", "wire": "4w"}
    assert used(Opcode.FILL, wire_format=2) == {"wire": "4w"}
    assert used(Opcode.IDENTIFY, wire_format=3) == {"wire": "4w"}
    assert used(Opcode.BARRIER) == {}


def test_a_fetch_without_an_address_writes_at_0() -> None:
    found = sections(Descriptor(Opcode.FETCH, 3, addresses={"p": 64}))
    assert found["wire"] == Section(0, 12, is_read=False, is_written=True)
    assert found["p"].end == 76


def test_a_format_that_there_is_not_has_no_sections() -> None:
    with pytest.raises(ValueError, match=r"g_format = 3 is no format: use one of 0 \(fp32\), 1 \(bf16\), 2 \(fp16\)"):
        sections(Descriptor(Opcode.FOLD, 1, g_format=3))
    with pytest.raises(ValueError, match="wire_format = 3 is no format"):
        sections(Descriptor(Opcode.FETCH, 1, wire_format=len(FORMATS)))


def record_bytes(values: dict[str, int]) -> bytes:
    row = bytearray(interface.RECORD_SIZE)
    for name, value in values.items():
        offset, width = interface.RECORD[name]
        row[offset : offset + width // 8] = value.to_bytes(width // 8, "little")
    return bytes(row)


def test_a_record_is_read_from_where_the_interface_has_it() -> None:
    done = record_bytes({"status": 1 | 1 << 16 | 1 << 17, "tag": 7, "m_acknowledged": 5, "v_acknowledged": 6})
    faulted = record_bytes(
        {
            "status": State.FAULTED | Fault.TIMEOUT << 8 | SOURCES.index("records") << 20,
            "tag": 0xFFFF_FFFF,
            "number": 1,
            "fault_address": 0xFEDC_BA98_7654_3210,
            "p_acknowledged": 8,
            "wire_acknowledged": 9,
            "clocks": 10,
        }
    )
    wanted = [
        Record(0, 7, State.DONE, Fault.NONE, True, True, None, 0, {"m": 5, "v": 6, "p": 0, "wire": 0}, 0),
        Record(
            1,
            0xFFFF_FFFF,
            State.FAULTED,
            Fault.TIMEOUT,
            False,
            False,
            "records",
            0xFEDC_BA98_7654_3210,
            {"m": 0, "v": 0, "p": 8, "wire": 9},
            10,
        ),
    ]
    assert decode(done + faulted, 2) == wanted
    assert decode(np.frombuffer(done + faulted + bytes(64), np.uint8).reshape(3, 64), 2) == wanted
    assert ACKNOWLEDGED == ("m", "v", "p", "wire")


def test_a_record_that_the_host_has_cleared_is_pending() -> None:
    (record,) = decode(bytes(interface.RECORD_SIZE), 1)
    assert (record.state, record.fault, record.stream) == (State.PENDING, Fault.NONE, None)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (len(State), "record 1: state = 5 has no meaning"),
        (len(Fault) << 8, "record 1: fault = 13 has no meaning"),
        (len(SOURCES) << 20, "record 1: stream = 7 has no meaning"),
    ],
)
def test_a_record_of_unknown_numbers_is_refused_by_name(status: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(bytes(interface.RECORD_SIZE) + record_bytes({"status": status}), 2)


@pytest.mark.parametrize(("size", "count"), [(63, 1), (64, 2)])
def test_too_few_bytes_are_refused(size: int, count: int) -> None:
    with pytest.raises(ValueError, match=rf"{count} records have {64 * count} bytes, not {size}"):
        decode(bytes(size), count)
    with pytest.raises(ValueError, match="-1 records cannot be decoded: use 0 or more"):
        decode(bytes(size), -1)
