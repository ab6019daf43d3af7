"""Servers whose arithmetic is watched or slowed, for the tests of the user reports."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from relay_eps.eps import HostEPS
from relay_eps.eps.arithmetic import Arithmetic
from relay_eps.eps.kernels import KernelArithmetic


class WatchedArithmetic:
    """The compiled arithmetic; ``before`` is told the name of each pass over memory just before it runs."""

    name = "watched"

    def __init__(self, before: Callable[[str], None]) -> None:
        self._inner: Arithmetic = KernelArithmetic(threads=1)
        self._before = before

    def _pass_on(self, what: str, *args: Any, **kwargs: Any) -> Any:
        self._before(what)
        return getattr(self._inner, what)(*args, **kwargs)

    def fold(self, *args: Any, **kwargs: Any) -> None:
        self._pass_on("fold", *args, **kwargs)

    def apply(self, *args: Any, **kwargs: Any) -> None:
        self._pass_on("apply", *args, **kwargs)

    def fold_apply(self, *args: Any, **kwargs: Any) -> None:
        self._pass_on("fold_apply", *args, **kwargs)

    def accumulate(self, *args: Any, **kwargs: Any) -> None:
        self._pass_on("accumulate", *args, **kwargs)

    def convert(self, *args: Any, **kwargs: Any) -> None:
        self._pass_on("convert", *args, **kwargs)

    def all_finite(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._pass_on("all_finite", *args, **kwargs))

    def close(self) -> None:
        self._inner.close()


def watched_server(before: Callable[[str], None], **settings: Any) -> HostEPS:
    """A server in host memory that tells ``before`` of every pass over memory, on its dispatcher's thread."""
    return HostEPS(WatchedArithmetic(before), name="watched", **settings)


def counting_server(passes: Counter[str], **settings: Any) -> HostEPS:
    """A server that counts its passes over memory by kind."""
    return watched_server(lambda what: passes.update([what]), **settings)


def slow_server(seed: int, longest: float = 0.003, **settings: Any) -> HostEPS:
    """A server that sleeps for a random while before each pass, so that everything it does comes late."""
    delays = random.Random(seed)
    return watched_server(lambda what: time.sleep(delays.uniform(0.0, longest)), **settings)
