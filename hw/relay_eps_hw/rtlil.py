"""Operators of equal widths: a change to RTLIL text between Amaranth, which writes it, and Yosys, which makes Verilog.

Verilog extends the narrower operand of an operator by itself, and linters ask each time whether that was meant. Here
it is written out. Signals of no bits, which Verilog cannot say, are left out.
"""

from __future__ import annotations

import re

#: Operators whose operands are as wide as their result, and such that only compare.
_ARITHMETIC = ("$add", "$sub", "$mul")
_COMPARISONS = ("$eq", "$ne", "$lt", "$le", "$gt", "$ge")
#: Shifts of which only low bits are taken: a choice of some bits.
_DOWNWARD = ("$shift", "$shiftx", "$shr")

_WIRE = re.compile(r"\s+wire (?:width (\d+) )?(?:.* )?(\S+)$")
_CELL = re.compile(r"^  cell (\$\w+) (\S+)\n(.*?)^  end\n", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r"parameter \\(\w+) (\d+)$", re.MULTILINE)
_CONNECT = re.compile(r"connect \\(\w+) (.*)$", re.MULTILINE)
_MODULE = re.compile(r"^module .*?^end\n", re.MULTILINE | re.DOTALL)
_ZERO = re.compile(r"\d+'0*|\{\s*\}")
_TOKEN = re.compile(r"(\d+'[01xz-]*|[\\$][^\s]+)(?: \[(\d+)(?::\d+)?\])?")


def equal_widths(text: str) -> str:
    """``text`` with every operator's operands extended to one width, and without signals of no bits."""
    return _MODULE.sub(lambda module: _Module(module[0]).rewritten(), text)


class _Module:
    """One module of RTLIL."""

    def __init__(self, text: str) -> None:
        self._widths: dict[str, int] = {}
        lines = []
        for line in text.splitlines(keepends=True):
            wire = _WIRE.match(line)
            if wire:
                self._widths[wire[2]] = int(wire[1] or 1)
            if not (wire and self._widths[wire[2]] == 0):
                lines.append(line)
        self._text = "".join(lines)

    def rewritten(self) -> str:
        empty = [re.escape(name) for name, width in self._widths.items() if width == 0]
        text = _CELL.sub(self._cell, self._text)
        if empty:
            # Nothing, as a signal; between others it vanishes.
            text = re.sub(rf"(?<=\s)(?:{'|'.join(empty)})(?=\s)", "{ }", text)
            text = re.sub(r"^ +connect \{ \} \{ \}\n", "", text, flags=re.MULTILINE)
        return text

    def _cell(self, cell: re.Match[str]) -> str:
        kind, name, body = cell.groups()
        value = {key: int(number) for key, number in _PARAMETER.findall(body)}
        if value.get("Y_WIDTH") == 0:
            return ""
        signal = dict(_CONNECT.findall(body))
        if kind == "$eq" and value["A_WIDTH"] > 1 and _ZERO.fullmatch(signal["B"]):
            return _no_bit_set(name, value["A_WIDTH"], signal["A"], signal["Y"])
        if kind == "$shl" and value["A_WIDTH"] < value["Y_WIDTH"]:
            wide = self._extended(signal["A"], value["A_WIDTH"], value["Y_WIDTH"], signed=False)
            body = body.replace(f"connect \\A {signal['A']}\n", f"connect \\A {wide}\n")
            body = body.replace(f"\\A_WIDTH {value['A_WIDTH']}\n", f"\\A_WIDTH {value['Y_WIDTH']}\n")
            return f"  cell {kind} {name}\n{body}  end\n"
        if kind in _DOWNWARD and value["A_WIDTH"] > value["Y_WIDTH"] and not value["A_SIGNED"]:
            return _low_bits(kind, name, body, value["A_WIDTH"], value["Y_WIDTH"], signal["Y"])
        if kind not in (*_ARITHMETIC, *_COMPARISONS):
            return cell[0]
        result = value["Y_WIDTH"] if kind in _ARITHMETIC else 0
        width = max(value["A_WIDTH"], value["B_WIDTH"], result)
        if value["A_WIDTH"] == value["B_WIDTH"] == width:
            return cell[0]
        signed = bool(value["A_SIGNED"] and value["B_SIGNED"])
        a, b = (self._extended(signal[port], value[f"{port}_WIDTH"], width, signed) for port in "AB")
        # Of extended operands only the order still depends on the sign.
        compares_signed = signed and kind in _COMPARISONS
        return _operator(kind, name, width, value["Y_WIDTH"], a, b, signal["Y"], signed=compares_signed)

    def _extended(self, signal: str, width: int, wanted: int, signed: bool) -> str:
        extra = wanted - width
        if not extra:
            return signal
        if not signed:
            return f"{{ {extra}'{'0' * extra} {signal} }}"
        return "{ " + f"{self._top(signal)} " * extra + signal + " }"

    def _top(self, signal: str) -> str:
        """The highest bit of a signal, which may be put together of several."""
        token = _TOKEN.search(signal)
        assert token is not None, signal
        name, place = token.groups()
        if name[0].isdigit():
            return f"1'{name.partition(chr(39))[2][0]}"
        if place is None and self._widths.get(name, 1) == 1:
            return name
        return f"{name} [{place if place is not None else self._widths[name] - 1}]"


def _operator(kind: str, name: str, width: int, result: int, a: str, b: str, y: str, *, signed: bool) -> str:
    parameters = {
        "A_SIGNED": int(signed),
        "B_SIGNED": int(signed),
        "A_WIDTH": width,
        "B_WIDTH": width,
        "Y_WIDTH": result,
    }
    lines = [f"  cell {kind} {name}"]
    lines += [f"    parameter \\{key} {value}" for key, value in parameters.items()]
    lines += [f"    connect \\A {a}", f"    connect \\B {b}", f"    connect \\Y {y}", "  end\n"]
    return "\n".join(lines)


def _low_bits(kind: str, name: str, body: str, width: int, result: int, y: str) -> str:
    # The whole shifted number first, then its low bits.
    wide = f"{name}.wide"
    body = body.replace(f"connect \\Y {y}\n", f"connect \\Y {wide}\n")
    body = body.replace(f"\\Y_WIDTH {result}\n", f"\\Y_WIDTH {width}\n")
    return f"  wire width {width} {wide}\n  cell {kind} {name}\n{body}  end\n  connect {y} {wide} [{result - 1}:0]\n"


def _no_bit_set(name: str, width: int, a: str, y: str) -> str:
    # Written as a comparison with 0 it would become the logical negation of a number.
    some = f"{name}.any"
    return (
        f"  wire {some}\n"
        f"  cell $reduce_or {name}.or\n    parameter \\A_SIGNED 0\n    parameter \\A_WIDTH {width}\n"
        f"    parameter \\Y_WIDTH 1\n    connect \\A {a}\n    connect \\Y {some}\n  end\n"
        f"  cell $not {name}\n    parameter \\A_SIGNED 0\n    parameter \\A_WIDTH 1\n"
        f"    parameter \\Y_WIDTH 1\n    connect \\A {some}\n    connect \\Y {y}\n  end\n"
    )
