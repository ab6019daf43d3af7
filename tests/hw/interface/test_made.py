"""What is made of the tables: the page, the host's constants, and what the vendors' tools are told."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from relay_eps import fpga
from relay_eps.fpga import interface
from relay_eps_hw.interface import codes
from relay_eps_hw.interface.__main__ import made
from relay_eps_hw.interface.descriptors import DESCRIPTOR, RECORD
from relay_eps_hw.interface.layout import Layout
from relay_eps_hw.interface.page import page
from relay_eps_hw.interface.registers import REGISTERS, SPACE, Access, registers
from relay_eps_hw.interface.vendor import hwh_registers, kernel_xml

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", made())
def test_the_files_in_the_repository_are_what_the_tables_make(path: str):
    assert (ROOT / path).read_text() == made()[path], "run python -m relay_eps_hw.interface"


@pytest.mark.parametrize("layout", [REGISTERS, DESCRIPTOR, RECORD], ids=lambda layout: layout.name)
def test_the_hosts_constants_are_the_tables(layout: Layout):
    name = layout.name.upper()
    assert getattr(interface, f"{name}_SIZE") == layout.size
    assert getattr(interface, name) == {place.name: (place.offset, place.width) for place in layout}
    fields = {f"{place.name}.{bits.name}": (bits.low, bits.width) for place in layout for bits in place.fields}
    assert getattr(interface, f"{name}_FIELDS") == fields


@pytest.mark.parametrize("name", ["Opcode", "State", "Fault"])
def test_the_hosts_numbers_are_the_gatewares(name: str):
    ours, theirs = getattr(codes, name), getattr(interface, name)
    assert {code.name: code.value for code in ours} == {code.name: code.value for code in theirs}
    assert fpga.__doc__


def test_the_page_has_a_row_for_everything():
    text = page()
    for layout in (REGISTERS, DESCRIPTOR, RECORD):
        for place in layout:
            assert f"| 0x{place.offset:02x} | `{place.name}` | {place.width} |" in text
            assert all(f"`.{bits.name}`" in text for bits in place.fields)
    for group in (codes.Opcode, codes.State, codes.Fault):
        assert all(f"| {code.value} | `{code.name}` | {code.meaning} |" in text for code in group)


@pytest.mark.parametrize("ports", [1, 2, 4, 5])
def test_a_kernel_has_an_argument_for_each_of_its_ports(ports: int):
    kernel = ElementTree.fromstring(kernel_xml(ports, 512))[0]
    listed = {port.attrib["name"]: port.attrib for port in kernel.iter("port")}
    assert list(listed) == ["s_axi_control", *(f"m_axi_port_{number}" for number in range(ports))]
    assert listed["s_axi_control"]["range"] == f"{SPACE:#x}"
    arguments = [argument.attrib for argument in kernel.iter("arg")]
    assert [int(argument["id"]) for argument in arguments] == list(range(3 + ports))
    for argument in arguments:
        register = REGISTERS[argument["name"]]
        assert int(argument["offset"], 16) == register.offset
        assert int(argument["size"], 16) == 4 * register.words
        # A buffer is connected to a port that there is; pyxrt passes no other numbers of 64 bits.
        assert (argument["addressQualifier"] == "1") == (register.words == 2) == (argument["type"] == "void*")
        assert argument["port"] in listed
    connected = {argument["port"] for argument in arguments if argument["name"].startswith("port_")}
    assert connected == set(listed) - {"s_axi_control"}


def test_the_hwh_lists_every_register_with_its_fields():
    block = ElementTree.fromstring(hwh_registers())
    found = {element.attrib["NAME"]: element for element in block.iter("REGISTER")}
    assert set(found) == {place.name for place in REGISTERS}
    for access in Access:
        for register in registers(access):
            properties = {p.attrib["NAME"]: p.attrib["VALUE"] for p in found[register.name].findall("PROPERTY")}
            assert int(properties["ADDRESS_OFFSET"]) == register.offset
            assert int(properties["SIZE"]) == register.width
            assert (properties["ACCESS"] == "read-only") == (access is Access.STATUS)
            fields = [field.attrib["NAME"] for field in found[register.name].iter("FIELD")]
            assert fields == ([bits.name for bits in register.fields] or [register.name])
