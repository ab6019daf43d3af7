"""Dynamic loss scaling for fp16: losses are multiplied before the backward, gradients divided as they are folded."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

from relay_eps.errors import ContractError


@dataclass
class LossScale:
    """A power of two that halves when gradients overflow and doubles after ``growth_interval`` good steps.

    Powers of two make scaling and unscaling exact but for overflow and underflow. The scale stays between ``smallest``
    and ``largest``; the counters say how often steps were skipped. Raises ContractError for other values.
    """

    scale: float = 2.0**16
    growth_interval: int = 2000
    smallest: float = 1.0
    largest: float = 2.0**24
    #: Good steps since the scale last changed.
    good: int = 0
    #: Steps skipped in all, and since the last good one.
    skipped: int = 0
    skipped_in_a_row: int = 0

    def __post_init__(self) -> None:
        for name in ("scale", "smallest", "largest"):
            value = getattr(self, name)
            if not value > 0 or frexp(value)[0] != 0.5:
                raise ContractError(f"{name} must be a power of two, not {value}")
        if not self.smallest <= self.scale <= self.largest:
            raise ContractError(f"scale must lie between {self.smallest:g} and {self.largest:g}, not at {self.scale:g}")

    def update(self, *, finite: bool) -> None:
        """Count a step, and move the scale."""
        if finite:
            self.good += 1
            self.skipped_in_a_row = 0
            if self.good >= self.growth_interval:
                self.scale, self.good = min(self.scale * 2, self.largest), 0
            return
        self.skipped += 1
        self.skipped_in_a_row += 1
        self.scale, self.good = max(self.scale / 2, self.smallest), 0
