"""Netlists as Yosys writes them in JSON, in a few words."""

from __future__ import annotations

from typing import Any

Bits = int | str | list[Any]


def cell(kind: str, outputs: dict[str, Bits], inputs: dict[str, Bits]) -> dict[str, Any]:
    """A cell; each port has one bit or several, a number for a signal and "0" or "1" for a constant."""
    ports = {**outputs, **inputs}
    return {
        "type": kind,
        "port_directions": {port: "output" if port in outputs else "input" for port in ports},
        "connections": {port: bits if isinstance(bits, list) else [bits] for port, bits in ports.items()},
    }


def module(*cells: dict[str, Any]) -> dict[str, Any]:
    """A module of these cells."""
    return {"cells": {f"cell_{number}": each for number, each in enumerate(cells)}}
