"""What the multipliers are made of; everything else is the same for every device."""

from __future__ import annotations

from enum import Enum


class Target(str, Enum):
    """A kind of device that the logic is written for."""

    #: Multiplications as ``*``, with registers where AMD's DSP blocks have theirs.
    GENERIC = "generic"
    #: Lattice's MULT18X18D, with its registers.
    ECP5 = "ecp5"

    @classmethod
    def parse(cls, name: str) -> Target:
        """The target called ``name``; ValueError, with the known names, for any other."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(target.value for target in cls)
            raise ValueError(f"unknown target {name!r}: use one of {known}") from None
