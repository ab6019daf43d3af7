"""What the vendors' tools are told about the registers: a kernel's arguments for Vitis, the register page of a .hwh."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from relay_eps_hw.interface.layout import Field
from relay_eps_hw.interface.registers import SPACE, Access, Register, registers

KERNEL = "relay_eps"
VLNV = f"relay-eps:kernel:{KERNEL}:1.0"
SLAVE = "s_axi_control"
#: Who may do what, in the words of IP-XACT. A command's bit says whether it is still going on.
_ACCESS = {
    Access.PROTOCOL: "read-write",
    Access.ARGUMENT: "read-write",
    Access.STATUS: "read-only",
    Access.COMMAND: "read-write",
}


def port_name(number: int) -> str:
    """The name of an AXI port."""
    return f"m_axi_port_{number}"


def kernel_xml(ports: int, data_bits: int) -> str:
    """The kernel.xml of a core with so many AXI ports of so many bits.

    Addresses are buffers to XRT, also those of the batch and of the records: pyxrt passes no integers of 64 bits. Both
    lie in the bank of port 0, which fetches descriptors and writes records.
    """
    root = Element("root", versionMajor="1", versionMinor="6")
    kernel = SubElement(
        root,
        "kernel",
        name=KERNEL,
        language="ip_c",
        vlnv=VLNV,
        attributes="",
        preferredWorkGroupSizeMultiple="0",
        workGroupSize="1",
        interrupt="true",
        hwControlProtocol="ap_ctrl_hs",
    )
    listed = SubElement(kernel, "ports")
    SubElement(
        listed,
        "port",
        name=SLAVE,
        mode="slave",
        range=f"{SPACE:#x}",
        dataWidth="32",
        portType="addressable",
        base="0x0",
    )
    for number in range(ports):
        SubElement(
            listed,
            "port",
            name=port_name(number),
            mode="master",
            range="0xFFFFFFFFFFFFFFFF",
            dataWidth=str(data_bits),
            portType="addressable",
            base="0x0",
        )
    arguments = SubElement(kernel, "args")
    for number, register in enumerate(_arguments(ports)):
        _argument(arguments, number, register)
    return _text(root)


def _arguments(ports: int) -> list[Register]:
    ours = [f"port_{number}" for number in range(ports)]
    return [
        register for register in registers(Access.ARGUMENT) if register.name in ours or "port_" not in register.name
    ]


def _argument(parent: Element, number: int, register: Register) -> None:
    is_buffer = register.words == 2
    _, is_port, index = register.name.partition("port_")
    size = f"{4 * register.words:#x}"
    SubElement(
        parent,
        "arg",
        name=register.name,
        addressQualifier=str(int(is_buffer)),
        id=str(number),
        port=port_name(int(index) if is_port else 0) if is_buffer else SLAVE,
        size=size,
        offset=f"{register.offset:#x}",
        type="void*" if is_buffer else "uint",
        hostOffset="0x0",
        hostSize=size,
    )


def hwh_registers() -> str:
    """The ADDRESSBLOCK of a .hwh: PYNQ makes a register map of it. A register of two words is one of 64 bits."""
    block = Element("ADDRESSBLOCK", ACCESS="", INTERFACE=SLAVE, NAME="Reg", RANGE=str(SPACE), USAGE="register")
    listed = SubElement(block, "REGISTERS")
    for access in Access:
        for register in registers(access):
            _register(listed, register)
    return _text(block)


def _register(parent: Element, register: Register) -> None:
    element = SubElement(parent, "REGISTER", NAME=register.name)
    _property(element, "DESCRIPTION", register.meaning)
    _property(element, "ADDRESS_OFFSET", str(register.offset))
    _property(element, "SIZE", str(register.width))
    _property(element, "ACCESS", _ACCESS[register.access])
    _property(element, "RESET_VALUE", "0x0")
    fields = SubElement(element, "FIELDS")
    for field in register.fields or (Field(register.name, 0, register.width, register.meaning),):
        bits = SubElement(fields, "FIELD", NAME=field.name)
        _property(bits, "DESCRIPTION", field.meaning)
        _property(bits, "ACCESS", _ACCESS[register.access])
        _property(bits, "BIT_OFFSET", str(field.low))
        _property(bits, "BIT_WIDTH", str(field.width))


def _property(parent: Element, name: str, value: str) -> None:
    SubElement(parent, "PROPERTY", NAME=name, VALUE=value)


def _text(root: Element) -> str:
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"
