"""Changes to generated Verilog that only a simulation wants."""

from __future__ import annotations

import re

_REGISTER = re.compile(r"^ *initial \S+ += \d+'[hbd][0-9a-fA-F]+;\n", re.MULTILINE)
_MEMORY = re.compile(r"^\s*initial begin\n(?:\s*\S+\[\d+\] = \d+'[hbd][0-9a-fA-F]+;\n)+\s*end\n", re.MULTILINE)


def without_initial_values(verilog: str) -> str:
    """``verilog`` whose registers and memories start undefined, for a simulator that fills them with random bits.

    Amaranth gives every register its reset value from the start; logic that only works because of it would not work
    on a device that is reset and not reloaded.
    """
    return _MEMORY.sub("", _REGISTER.sub("", verilog))
