"""The formats of gradients and wire copies, as the logic codes them."""

from __future__ import annotations

from enum import IntEnum

from relay_eps_hw.floats.formats import BF16, FP16, FP32, FloatFormat


class WireFormat(IntEnum):
    """A format of two bits; 3 is not used."""

    FP32 = 0
    BF16 = 1
    FP16 = 2

    @property
    def format(self) -> FloatFormat:
        """The widths of its fields."""
        return (FP32, BF16, FP16)[self]
