"""What the multipliers are made of; everything else is the same for every device."""

from enum import Enum


class Target(str, Enum):
    """A kind of device that the logic is written for."""

    #: Multiplications as ``*``, with registers where AMD's DSP blocks have theirs.
    GENERIC = "generic"
    #: Lattice's MULT18X18D, with its registers.
    ECP5 = "ecp5"
