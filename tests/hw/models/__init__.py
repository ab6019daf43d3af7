"""Models of primitives that a simulator does not know."""

from __future__ import annotations

from pathlib import Path

#: The multiplier block of Lattice's ECP5.
MULT18X18D = Path(__file__).with_name("mult18x18d.v").read_text()
