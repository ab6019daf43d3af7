"""Hyper-parameters of AdamA, and the fp32 scalars that the arithmetic takes.

Scalars are worked out in float64, with powers by repeated squaring so that every platform agrees, and rounded to
fp32 once. Each must be finite, and +0 or normal; all but ``k`` and ``scale`` must not be negative.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from relay_eps.errors import ContractError

_FP32 = struct.Struct("f")
_SMALLEST_NORMAL = 2.0**-126


@dataclass(frozen=True)
class FoldScalars:
    """The scalars of one fold, as Python floats that fp32 holds exactly."""

    b1: float
    c1: float
    b2: float
    c2: float


@dataclass(frozen=True)
class ApplyScalars:
    """The scalars of one apply, as Python floats that fp32 holds exactly."""

    r2: float
    eps: float
    k: float
    s: float


@dataclass(frozen=True)
class AdamHyper:
    """AdamA's hyper-parameters for one parameter group (arXiv 2305.19982; weight decay decoupled, as in AdamW).

    ``v_scale`` multiplies the squares that enter v: 1 is the paper's rule. With N micro-batches folded one by one v is
    the sum of their squares, not the square of their sum; ``v_scale`` lets a user lean towards Adam's v.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    v_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ContractError(f"{name} must be at least 0 and below 1, not {value}")
        for name in ("lr", "eps", "weight_decay", "v_scale"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ContractError(f"{name} must be finite and not negative, not {value}")

    def fold_scalars(self) -> FoldScalars:
        """Scalars of a fold; raises ContractError where one cannot be a contract scalar."""
        return FoldScalars(
            b1=scalar("b1 = beta1", self.beta1),
            c1=scalar("c1 = 1 - beta1", 1.0 - self.beta1),
            b2=scalar("b2 = beta2", self.beta2),
            c2=scalar("c2 = (1 - beta2) * v_scale", (1.0 - self.beta2) * self.v_scale),
        )

    def apply_scalars(self, t: int) -> ApplyScalars:
        """Scalars of the ``t``-th apply of a layer (``t`` from 1); raises ContractError where one is outside."""
        if t < 1:
            raise ContractError(f"applies are counted from 1, not {t}")
        bias1 = 1.0 - power(self.beta1, t)
        bias2 = 1.0 - power(self.beta2, t)
        return ApplyScalars(
            r2=scalar("r2 = 1 / sqrt(1 - beta2**t)", 1.0 / math.sqrt(bias2)),
            eps=scalar("eps", self.eps),
            k=scalar("k = 1 - lr * weight_decay", 1.0 - self.lr * self.weight_decay, signed=True),
            s=scalar("s = lr / (1 - beta1**t)", self.lr / bias1),
        )


def power(base: float, exponent: int) -> float:
    """``base ** exponent`` in float64 by repeated squaring from the lowest bit, the same on every platform."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _fp32(value: float) -> float:
    # struct rounds to nearest even as numpy does, in a tenth of the time that numpy's error state takes.
    try:
        return float(_FP32.unpack(_FP32.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def scalar(name: str, value: float, *, signed: bool = False) -> float:
    """``value`` rounded once to fp32; raises ContractError unless it is then finite, and +0 or normal.

    ``signed`` allows negative values (only ``k`` and ``scale`` may be negative). -0 becomes +0.
    """
    rounded = _fp32(value)
    if not math.isfinite(rounded):
        raise ContractError(f"{name} is {value!r}, which fp32 cannot hold: choose hyper-parameters that keep it finite")
    if rounded < 0 and not signed:
        raise ContractError(f"{name} is {value!r}: it must not be negative")
    # A value that is not zero but rounds to a subnormal, or to zero, is refused, not flushed.
    if value != 0 and abs(rounded) < _SMALLEST_NORMAL:
        raise ContractError(f"{name} is {value!r}: below {_SMALLEST_NORMAL:.3g} it must be exactly 0")
    return rounded + 0.0
