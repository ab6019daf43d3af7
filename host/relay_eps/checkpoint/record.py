"""The record of a checkpoint as JSON, with the Python kinds that JSON lacks kept apart.

Schedulers' states hold dictionaries with integer keys, counters and tuples (``MultiStepLR`` keeps its milestones in a
``Counter``). Plain JSON would turn the keys into strings without a word, and the schedule would be another one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from relay_eps.errors import CheckpointError

_KIND = "__kind__"


def encode(value: Any, where: str = "record") -> Any:
    """``value`` in terms of JSON's own kinds; raises CheckpointError naming the first part that cannot be kept."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return _tagged("tuple", [encode(item, f"{where}[{i}]") for i, item in enumerate(value)])
    if isinstance(value, Counter):
        return _tagged("counter", _pairs(value, where))
    if isinstance(value, dict):
        if _KIND not in value and all(isinstance(key, str) for key in value):
            return {key: encode(item, f"{where}.{key}") for key, item in value.items()}
        return _tagged("dict", _pairs(value, where))
    raise CheckpointError(
        f"a checkpoint cannot keep {where}, of type {type(value).__name__}: "
        "use numbers, strings, lists, tuples and dictionaries (arrays go with the buffers)"
    )


def decode(value: Any) -> Any:
    """What `encode` was given; raises KeyError, TypeError or ValueError for what it cannot have made."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: decode(item) for key, item in value.items()}
    items = decode(value["items"])
    kinds: dict[str, Any] = {"tuple": tuple, "dict": dict, "counter": lambda pairs: Counter(dict(pairs))}
    return kinds[value[_KIND]](items)


def _tagged(kind: str, items: list[Any]) -> dict[str, Any]:
    return {_KIND: kind, "items": items}


def _pairs(value: dict[Any, Any], where: str) -> list[Any]:
    return [[encode(key, f"a key of {where}"), encode(item, f"{where}[{key!r}]")] for key, item in value.items()]
