"""The host's constants, as the text of a Python module: its driver knows the tables without the gateware's package."""

from __future__ import annotations

from relay_eps_hw.interface.codes import Code, Fault, Opcode, State
from relay_eps_hw.interface.descriptors import ALIGNMENT, DESCRIPTOR, LONGEST, RECORD, SCALARS, SOURCES, STREAMS
from relay_eps_hw.interface.layout import Layout
from relay_eps_hw.interface.operations import USES, WIRE_HAS_FORMAT, WIRE_IS_OPTIONAL
from relay_eps_hw.interface.registers import IDENTITY, REGISTERS, VERSION

_HEAD = '''\
"""What the host and the EPS core agree on: registers, descriptors, records and numbers.

Made by ``python -m relay_eps_hw.interface`` from the gateware's own tables: change those. docs/registers.md says what
each means. A layout maps a name to its offset in bytes and its width in bits; fields map "place.field" to the lowest
bit and the width.
"""

from enum import IntEnum
'''


def constants() -> str:
    """The module's text."""
    numbers = {
        "IDENTITY": f"{IDENTITY:#x}",
        "VERSION": str(VERSION),
        "ALIGNMENT": str(ALIGNMENT),
        "LONGEST": str(LONGEST),
    }
    parts = [_HEAD, "\n".join(f"{name} = {value}" for name, value in numbers.items())]
    names = {"STREAMS": STREAMS, "SOURCES": SOURCES, "SCALARS": SCALARS}
    parts.append("\n".join(f"{name} = {_tuple(value)}" for name, value in names.items()))
    parts += [_layout(layout) for layout in (REGISTERS, DESCRIPTOR, RECORD)]
    codes = "".join(_codes(codes) for codes in (Opcode, State, Fault))
    return "\n".join(parts) + "\n" + codes + _operations()


def _tuple(names: tuple[str, ...]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"({quoted},)" if len(names) == 1 else f"({quoted})"


def _operations() -> str:
    lines = ["", "", "#: By operation: the streams read, and written. A first accumulate does not read m.", "USES = {"]
    lines += [f"    Opcode.{code.name}: ({_tuple(read)}, {_tuple(written)})," for code, (read, written) in USES.items()]
    lines.append("}")
    for name, codes in (("WIRE_IS_OPTIONAL", WIRE_IS_OPTIONAL), ("WIRE_HAS_FORMAT", WIRE_HAS_FORMAT)):
        lines.append(f"{name} = ({', '.join(f'Opcode.{code.name}' for code in codes)})")
    return "\n".join(lines) + "\n"


def _layout(layout: Layout) -> str:
    name = layout.name.upper()
    lines = [f"{name}_SIZE = {layout.size}", f"{name} = {{"]
    lines += [f'    "{place.name}": (0x{place.offset:03X}, {place.width}),' for place in layout]
    lines += ["}", f"{name}_FIELDS = {{"]
    for place in layout:
        lines += [f'    "{place.name}.{bits.name}": ({bits.low}, {bits.width}),' for bits in place.fields]
    return "\n".join([*lines, "}"])


def _codes(codes: type[Code]) -> str:
    lines = ["", "", f"class {codes.__name__}(IntEnum):", f'    """{(codes.__doc__ or "").strip()}"""', ""]
    lines += [f"    {code.name} = {code.value}" for code in codes]
    return "\n".join(lines) + "\n"
