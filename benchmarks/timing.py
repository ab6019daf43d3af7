"""Times of several ways to do a thing, taken in turns, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds that one contender took, one entry a round."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles, as a fraction of the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return low, high


# OpenMP's threads spin for milliseconds after their work, on cores that the next contender needs.
PAUSE_SECONDS = 0.02


def interleave(contenders: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2) -> dict[str, Times]:
    """Run every contender once a round, in an order that turns by one place each round; ``rounds`` at least 2.

    A pause before each lets the threads of the one before it go to sleep.
    """
    names = list(contenders)
    for _ in range(warmup):
        for name in names:
            contenders[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            time.sleep(PAUSE_SECONDS)
            start = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: Times(name, tuple(values)) for name, values in seconds.items()}


def ratio(over: Times, under: Times) -> float:
    """``over``'s median time over ``under``'s."""
    return over.median / under.median
