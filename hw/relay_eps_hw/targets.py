"""What the multipliers are made of; everything else is the same for every device."""

from __future__ import annotations

from enum import Enum


class Target(str, Enum):
    """A kind of device that the logic is written for."""

    #: Multiplications as ``*``, with registers where AMD's DSP blocks have theirs.
    GENERIC = "generic"
    #: Lattice's MULT18X18D, with its registers.
    ECP5 = "ecp5"


def check_target(target: object) -> Target:
    """The `Target` that ``target`` is, or names; ValueError, with the known ones, for any other."""
    for known in Target:
        if target == known:
            return known
    names = ", ".join(known.value for known in Target)
    raise ValueError(f"{target!r} is not a Target: use one of {names}")
