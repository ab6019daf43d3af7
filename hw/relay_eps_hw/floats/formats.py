"""Binary floating-point formats, as widths of their fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FloatFormat:
    """An IEEE 754 binary interchange format: a sign, ``exponent`` bits and ``fraction`` bits, the sign on top.

    Raises ValueError for widths that the units cannot be built for.
    """

    exponent: int
    fraction: int

    def __post_init__(self) -> None:
        widths = (self.exponent, self.fraction)
        if (
            any(type(width) is not int for width in widths)
            or not 3 <= self.exponent <= 11
            or not 2 <= self.fraction <= 52
        ):
            raise ValueError(
                f"a format with {self.exponent!r} exponent and {self.fraction!r} fraction bits is not supported: "
                "use 3 to 11 exponent bits and 2 to 52 fraction bits"
            )

    @property
    def width(self) -> int:
        """Bits a value takes."""
        return 1 + self.exponent + self.fraction

    @property
    def precision(self) -> int:
        """Bits of the significand, the hidden one included."""
        return self.fraction + 1

    @property
    def bias(self) -> int:
        """What is added to an exponent to store it."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def exponent_max(self) -> int:
        """The stored exponent of infinities and NaNs: all ones."""
        return (1 << self.exponent) - 1

    @property
    def infinity(self) -> int:
        """The bits of +infinity."""
        return self.exponent_max << self.fraction

    @property
    def nan(self) -> int:
        """The bits of the quiet NaN that the units give."""
        return self.infinity | 1 << (self.fraction - 1)

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.fraction

    @property
    def negative_zero(self) -> int:
        """The bits of -0."""
        return 1 << (self.width - 1)


FP32 = FloatFormat(8, 23)
BF16 = FloatFormat(8, 7)
FP16 = FloatFormat(5, 10)
