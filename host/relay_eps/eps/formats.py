"""Number formats on the wire and in gradients, and the numpy arrays that carry them.

numpy has no bfloat16, so bf16 travels as its bit pattern in ``uint16``; fp32 and fp16 travel as themselves.
All narrowing rounds to nearest even and keeps subnormals; all widening is exact.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.errors import ContractError


class Format(str, Enum):
    """A floating-point format that gradients and wire copies can have."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def carrier(self) -> np.dtype:
        """The numpy dtype of an array that carries this format."""
        return _CARRIERS[self]

    @property
    def itemsize(self) -> int:
        """Bytes an element takes."""
        return self.carrier.itemsize

    @classmethod
    def parse(cls, name: str | Format) -> Format:
        """The format called ``name``; raises ContractError, with the known names, for any other."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(f.value for f in cls)
            raise ContractError(f"unknown format {name!r}: use one of {known}") from None

    @classmethod
    def of(cls, array: NDArray) -> Format:
        """The format that ``array`` carries, from its dtype; raises ContractError for any other dtype."""
        for fmt, dtype in _CARRIERS.items():
            if array.dtype == dtype:
                return fmt
        raise ContractError(
            f"an array of dtype {array.dtype} carries no known format: "
            "use float32 (fp32), float16 (fp16) or uint16 (bf16 bit patterns)"
        )


_CARRIERS: dict[Format, np.dtype[Any]] = {
    Format.FP32: np.dtype(np.float32),
    Format.BF16: np.dtype(np.uint16),
    Format.FP16: np.dtype(np.float16),
}


def widen(values: NDArray) -> NDArray[np.float32]:
    """fp32 values equal to ``values`` (float32, float16, or uint16 for bf16); float32 comes back as it is."""
    fmt = Format.of(values)
    if fmt is Format.FP32:
        return values
    if fmt is Format.BF16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(all="ignore"):
        return values.astype(np.float32)


def narrow(values: NDArray[np.float32], fmt: Format) -> NDArray:
    """``values`` rounded to nearest even in ``fmt``; a new array but for fp32. NaN stays NaN, overflow is infinity."""
    if fmt is Format.FP32:
        return values
    with np.errstate(all="ignore"):
        if fmt is Format.FP16:
            return values.astype(np.float16)
        bits = np.ascontiguousarray(values).view(np.uint32)
        # Adding 0x7FFF plus the lowest kept bit carries into the kept half exactly when nearest even rounds up.
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        quiet = (bits >> np.uint32(16)) | np.uint32(0x0040)
        return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
