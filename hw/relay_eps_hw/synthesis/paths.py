"""How much logic lies between two registers of a netlist for AMD devices.

LUTs used as RAM (read without a clock) and as shift registers count as LUTs. The multiplexers MUXF7 to MUXF9 lie in the
slice of their LUTs and count as nothing. Paths end at DSP blocks and block RAMs, into which the vendor's tools pull the
registers next to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

_LUT = re.compile(r"LUT[1-6]")
_MULTIPLEXER = re.compile(r"MUXF[789]|INV")
_CARRY = re.compile(r"CARRY[48]")
_RAM = re.compile(r"RAM\d.*")
_SHIFT_REGISTER = re.compile(r"SRL.*")


@dataclass(frozen=True)
class Paths:
    """The longest paths of a netlist; each figure is a maximum of its own, over all paths.

    Attributes:
        lut_levels: LUTs one after another, on paths that pass no carry chain.
        lut_levels_with_carry: LUTs one after another, on paths that do.
        carry_cells: carry cells (of 4 bits, which Yosys uses on UltraScale+ too) one after another.
    """

    lut_levels: int
    lut_levels_with_carry: int
    carry_cells: int


@dataclass(frozen=True)
class _Node:
    """One bit that combinational logic drives."""

    inputs: tuple[int, ...]
    luts: int = 0
    carries: int = 0


def longest_paths(module: Mapping[str, Any]) -> Paths:
    """The longest paths of a flat module of Yosys's JSON netlist."""
    nodes = {bit: node for cell in module["cells"].values() for bit, node in _nodes(cell)}
    order = TopologicalSorter({bit: [i for i in node.inputs if i in nodes] for bit, node in nodes.items()})
    # Of each bit: the most LUTs before it without a carry chain, with one (-1: there is no such path), carry cells.
    found: dict[int, tuple[int, int, int]] = {}
    for bit in order.static_order():
        node = nodes[bit]
        before = [found.get(i, (0, -1, 0)) for i in node.inputs] or [(0, -1, 0)]
        plain, carried, cells = (max(values) for values in zip(*before, strict=True))
        if node.carries:
            found[bit] = (-1, max(plain, carried), cells + node.carries)
        else:
            found[bit] = (_longer(plain, node.luts), _longer(carried, node.luts), cells)
    longest = [max(path[kind] for path in found.values()) for kind in range(3)] if found else [0] * 3
    return Paths(*(max(0, length) for length in longest))


def _longer(path: int, luts: int) -> int:
    return path if path < 0 else path + luts


def _nodes(cell: Mapping[str, Any]) -> Iterator[tuple[int, _Node]]:
    kind, ports = cell["type"], cell["connections"]
    outputs = [port for port, direction in cell["port_directions"].items() if direction == "output"]
    inputs = [port for port in ports if port not in outputs]
    if _CARRY.fullmatch(kind):
        yield from _carry(ports)
        return
    for output in outputs:
        if _LUT.fullmatch(kind):
            node = _Node(_signals(ports, inputs), luts=1)
        elif _MULTIPLEXER.fullmatch(kind):
            node = _Node(_signals(ports, inputs))
        elif _SHIFT_REGISTER.fullmatch(kind):
            node = _Node(_signals(ports, [port for port in inputs if port.startswith("A")]), luts=1)
        elif _RAM.fullmatch(kind):
            node = _Node(_signals(ports, [port for port in inputs if _addresses(port, output)]), luts=1)
        else:
            return
        yield from ((bit, node) for bit in ports[output] if isinstance(bit, int))


def _addresses(port: str, output: str) -> bool:
    """Whether an input of a LUT RAM is an address of this output."""
    if output.startswith("DO"):
        return port == f"ADDR{output[2]}"
    return port.startswith("DPRA" if output == "DPO" else "A")


def _carry(ports: Mapping[str, Any]) -> Iterator[tuple[int, _Node]]:
    # A bit depends on those below it only: whole cells would make paths, even loops, that are not there.
    start = _signals(ports, [port for port in ("CI", "CI_TOP", "CYINIT") if port in ports])
    for output, more in (("O", 0), ("CO", 1)):
        for place, bit in enumerate(ports.get(output, [])):
            if isinstance(bit, int):
                below = [*ports["S"][: place + 1], *ports["DI"][: place + more]]
                yield bit, _Node((*start, *(i for i in below if isinstance(i, int))), carries=1)


def _signals(ports: Mapping[str, Any], names: list[str]) -> tuple[int, ...]:
    """The bits of these ports, constants left out."""
    return tuple(bit for name in names for bit in ports[name] if isinstance(bit, int))
