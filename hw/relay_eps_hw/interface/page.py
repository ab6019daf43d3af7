"""The page of the docs about registers, descriptors and records."""

from __future__ import annotations

from collections.abc import Iterable

from relay_eps_hw.interface.codes import Code, Fault, Opcode, State
from relay_eps_hw.interface.descriptors import DESCRIPTOR, RECORD
from relay_eps_hw.interface.layout import Layout, Place
from relay_eps_hw.interface.registers import REGISTERS, Register

_HEAD = """\
# Registers, descriptors and records

What the host sees of the EPS core. This page is made of the tables in `hw/relay_eps_hw/interface` by
`python -m relay_eps_hw.interface`; a test holds it against them. All numbers are little-endian.
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [
        _HEAD,
        _section("Registers", REGISTERS),
        _section("Descriptors", DESCRIPTOR),
        _section("Completion records", RECORD),
        "## Numbers\n",
        *(_codes(codes) for codes in (Opcode, State, Fault)),
    ]
    return "\n".join(parts)


def _section(title: str, layout: Layout) -> str:
    lines = [f"## {title}\n", f"{layout.meaning}\n", f"{layout.size:,} bytes.\n"]
    lines += ["| offset | name | bits | access | meaning |", "|---|---|---|---|---|"]
    for place in layout:
        lines += _rows(place)
    return "\n".join(lines) + "\n"


def _rows(place: Place) -> Iterable[str]:
    access = place.access.value if isinstance(place, Register) else ""
    yield f"| 0x{place.offset:02x} | `{place.name}` | {place.width} | {access} | {place.meaning} |"
    for bits in place.fields:
        span = f"{bits.low}" if bits.width == 1 else f"{bits.low + bits.width - 1}:{bits.low}"
        yield f"| | `.{bits.name}` | {span} | | {bits.meaning} |"


def _codes(codes: type[Code]) -> str:
    lines = [
        f"### {codes.__name__}\n",
        f"{(codes.__doc__ or '').strip()}\n",
        "| number | name | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| {code.value} | `{code.name}` | {code.meaning} |" for code in codes]
    return "\n".join(lines) + "\n"
