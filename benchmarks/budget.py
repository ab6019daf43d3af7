"""A time budget that a script of several parts keeps: each part has a share, and what it does not use goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

#: A point may take this much longer than the one before it suggests.
_RESERVE = 1.3


class Budget:
    """``seconds`` from now on, for parts with the given shares, taken in that order."""

    def __init__(self, seconds: float, shares: dict[str, float]) -> None:
        self._end = time.monotonic() + seconds
        self._shares = dict(shares)
        #: What there was no time for, in words.
        self.left_out: list[str] = []

    def points(self, part: str, points: Sequence[T], cost: Callable[[T], float]) -> Iterator[T]:
        """The points of ``part`` that its time allows; ``cost`` says how long each takes relative to the others.

        The first is begun where any time is left at all, the others where they fit by what the last one took.
        """
        share = self._shares.pop(part)
        left = max(self._end - time.monotonic(), 0.0)
        end = time.monotonic() + left * share / (share + sum(self._shares.values()))
        seconds_a_cost = 0.0
        for point in points:
            started = time.monotonic()
            if started + _RESERVE * seconds_a_cost * cost(point) >= end:
                self.left_out.append(f"{part}: {point}")
                continue
            yield point
            seconds_a_cost = (time.monotonic() - started) / cost(point)
