"""The float units as they are tested: how each is made, what judges it, which operands it promises to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relay_eps_hw.faults import Faults
from relay_eps_hw.floats.add import Add
from relay_eps_hw.floats.divide import Divide
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.multiply import Multiply, Operands, Square
from relay_eps_hw.floats.narrow import Narrow
from relay_eps_hw.floats.root import Root
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.floats.widen import Widen
from relay_eps_hw.floats.wire import WireFormat
from tests.hw import functional, oracle
from tests.hw.operands import (
    SPECIALS,
    cancellations,
    every_exponent_pair,
    exponent_sweep,
    near_exact_quotients,
    near_exact_roots,
    random_pairs,
    special_pairs,
)
from tests.hw.oracle import Judged, is_nan

Bits = NDArray[np.uint32]
MAGNITUDE = np.uint32(0x7FFF_FFFF)


@dataclass(frozen=True)
class UnitCase:
    """A unit and its judge.

    Attributes:
        name: of the case.
        make: the unit, of a depth (None for the deepest), with faults or without.
        judge: SoftFloat's results for operands.
        promised: makes operands such as the unit promises to take out of any.
        operands: how many there are, not counting a format.
        source, fmt: the formats of the operands and of the result.
        wire: what the unit's ``format`` is, where it has one.
        impossible: the names of `functional.kinds` that cannot happen.
    """

    name: str
    make: Callable[[int | None, Faults | None], FloatUnit]
    judge: Callable[..., Judged]
    promised: Callable[..., tuple[Bits, ...]]
    operands: int = 2
    source: FloatFormat = FP32
    fmt: FloatFormat = FP32
    wire: WireFormat | None = None
    impossible: frozenset[str] = frozenset()

    def fixed(self, rng: np.random.Generator) -> tuple[Bits, ...]:
        """Special values (in all pairs), sweeps and near misses."""
        if self.operands == 1:
            near = near_exact_roots(rng, 20_000)
            halves = np.arange(1 << 16, dtype=np.uint32)
            sixteen = [
                halves,
                halves << np.uint32(16) | rng.choice(np.array([0, 0x7FFF, 0x8000, 0x8001], np.uint32), 1 << 16),
            ]
            return self.promised(np.concatenate([SPECIALS, near, *sixteen]))
        pairs = [
            special_pairs(),
            exponent_sweep(rng),
            every_exponent_pair(rng),
            cancellations(rng),
            near_exact_quotients(rng, 20_000),
        ]
        a, b = (np.concatenate(part) for part in zip(*pairs, strict=True))
        return self.promised(a, b)

    def random(self, rng: np.random.Generator, count: int) -> tuple[Bits, ...]:
        """Random operands of several distributions."""
        return self.promised(*random_pairs(rng, count)[: self.operands])

    def inputs(self, operands: tuple[Bits, ...]) -> tuple[Bits, ...]:
        """What the unit's ports get."""
        if self.wire is None:
            return operands
        return (*operands, np.full_like(operands[0], int(self.wire)))

    def kinds(self, operands: tuple[Bits, ...], judged: Judged) -> dict[str, NDArray[np.bool_]]:
        """Which of the vectors are of each kind that there can be, by the names of `functional.kinds`.

        AssertionError if one is of a kind that the case calls impossible.
        """
        exact = _exact(self.name, [functional.to_double(bits, self.source) for bits in operands])
        masks = functional.kinds(operands, self.source, judged, self.fmt, exact)
        met = {name for name in self.impossible if masks[name].any()}
        assert met == set(), f"{self.name} has met what is called impossible"
        return {name: mask for name, mask in masks.items() if name not in self.impossible}

    def sample(self, rng: np.random.Generator, count: int) -> tuple[Bits, ...]:
        """About ``count`` vectors of `fixed` and `random`, with some of each kind among them."""
        fixed, random = self.fixed(rng), self.random(rng, 20 * count)
        pool = tuple(np.concatenate(pair) for pair in zip(fixed, random, strict=True))
        kinds = self.kinds(pool, self.judge(*pool))
        each = count // (2 * len(kinds))
        chosen = [rng.permutation(np.flatnonzero(mask))[:each] for mask in kinds.values()]
        chosen.append(rng.integers(len(pool[0]), size=count - sum(map(len, chosen))))
        order = rng.permutation(np.concatenate(chosen))
        return tuple(bits[order] for bits in pool)


def _exact(name: str, values: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """A case's operation in double precision."""
    with np.errstate(all="ignore"):
        if "multiply" in name:
            return values[0] * values[1]
        return {
            "add": lambda: values[0] + values[1],
            "divide": lambda: values[0] / values[1],
            "square": lambda: values[0] * values[0],
            "root": lambda: np.sqrt(values[0]),
        }.get(name.partition("_")[0], lambda: values[0])()


def _anything(*operands: Bits) -> tuple[Bits, ...]:
    return operands


def _non_negative(bits: Bits) -> Bits:
    """Without signs, but for NaNs."""
    return np.where(is_nan(bits), bits, bits & MAGNITUDE)


def _scalar(bits: Bits) -> Bits:
    """+0 in place of all that is not normal."""
    exponent = bits >> np.uint32(23) & np.uint32(255)
    return np.where((exponent == 0) | (exponent == 255), np.uint32(0), bits)


def _root(bits: Bits) -> Bits:
    """+0 for subnormals, no sign but on NaNs."""
    subnormal = (bits & MAGNITUDE) < 1 << 23
    return np.where(subnormal, np.uint32(0), _non_negative(bits))


_NO_TIES = frozenset({"tie up", "tie down"})
_NEVER_SMALL = frozenset({"subnormal result", "smallest normal result", "overflow", "underflow to zero"})


def _wire_cases() -> list[UnitCase]:
    cases = []
    for wire in WireFormat:
        narrows = wire is not WireFormat.FP32
        exact = frozenset({"rounded up", "rounded down", "overflow", "underflow to zero"}) | _NO_TIES
        invalid = frozenset({"invalid"})
        cases.append(
            UnitCase(
                f"narrow_{wire.name.lower()}",
                lambda depth, faults: Narrow(depth=depth, faults=faults),
                lambda a, wire=wire: oracle.narrow(a, wire.format),
                _anything,
                operands=1,
                fmt=wire.format,
                wire=wire,
                impossible=invalid if narrows else exact | invalid,
            )
        )
        no_subnormal = (
            frozenset({"subnormal result", "smallest normal result"}) if wire is WireFormat.FP16 else frozenset()
        )
        cases.append(
            UnitCase(
                f"widen_{wire.name.lower()}",
                lambda depth, faults: Widen(depth=depth, faults=faults),
                lambda a, wire=wire: oracle.widen(a, wire.format),
                (lambda a: (a & np.uint32(0xFFFF),)) if narrows else _anything,
                operands=1,
                source=wire.format,
                wire=wire,
                impossible=exact | invalid | no_subnormal,
            )
        )
    return cases


CASES = [
    UnitCase(
        "add", lambda d, f: Add(depth=d, faults=f), oracle.add, _anything, impossible=frozenset({"underflow to zero"})
    ),
    UnitCase(
        "add_non_negative",
        lambda d, f: Add(depth=d, non_negative=True, faults=f),
        oracle.add,
        lambda a, b: (_non_negative(a), _non_negative(b)),
        impossible=frozenset({"underflow to zero", "invalid"}),
    ),
    UnitCase("multiply", lambda d, f: Multiply(depth=d, faults=f), oracle.multiply, _anything),
    UnitCase(
        "scalar_multiply",
        lambda d, f: Multiply(depth=d, kind=Operands.SCALAR, faults=f),
        oracle.multiply,
        lambda a, b: (a, _scalar(b)),
    ),
    UnitCase(
        "root_multiply",
        lambda d, f: Multiply(depth=d, kind=Operands.ROOT, faults=f),
        oracle.multiply,
        lambda a, b: (_root(a), _scalar(b) & MAGNITUDE),
        impossible=frozenset({"subnormal operand"}),
    ),
    UnitCase(
        "square",
        lambda d, f: Square(depth=d, faults=f),
        oracle.square,
        _anything,
        operands=1,
        # The square of an odd number is one more than a multiple of 8: a tie has an even number below it.
        impossible=frozenset({"invalid", "tie up"}),
    ),
    UnitCase("divide", lambda d, f: Divide(depth=d, faults=f), oracle.divide, _anything),
    UnitCase(
        "divide_positive",
        lambda d, f: Divide(depth=d, positive_divisor=True, faults=f),
        oracle.divide,
        lambda a, b: (a, _non_negative(b)),
    ),
    UnitCase(
        "root",
        lambda d, f: Root(depth=d, faults=f),
        oracle.root,
        _anything,
        operands=1,
        impossible=_NO_TIES | _NEVER_SMALL,
    ),
    *_wire_cases(),
]
