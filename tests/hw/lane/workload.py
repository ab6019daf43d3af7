"""Random work for the lanes, and what the golden model makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps import golden
from relay_eps.eps.formats import Format, narrow, widen
from relay_eps.eps.hyper import ApplyScalars, FoldScalars
from relay_eps_hw.lane.beat import SCALARS, SIGNED, Operation
from relay_eps_sim.packing import Places, Words, pack, unpack

Bits = NDArray[np.uint32]

FORMATS = (Format.FP32, Format.BF16, Format.FP16)
#: Which outputs hold the result of each operation.
RESULTS = {
    Operation.FOLD: ("m", "v"),
    Operation.APPLY: ("p", "wire"),
    Operation.FOLD_APPLY: ("m", "v", "p", "wire"),
    Operation.ACCUMULATE: ("m",),
    Operation.FETCH: ("wire",),
}
# fmt: off
SPECIAL = np.array([
    0, 1, 2, 0x007F_FFFF, 0x0080_0000, 0x0080_0001, 0x3F7F_FFFF, 0x3F80_0000, 0x3F80_0001, 0x7F7F_FFFF, 0x7F80_0000,
    0x7FC0_0000, 0x7F80_0001, 0x1A00_0000, 0x5F00_0000, 0x3880_0000, 0x3300_0000, 0x477F_F000, 0x33FF_FFFF,
], np.uint32)
# fmt: on


@dataclass(frozen=True)
class Work:
    """One operation on ``len(g)`` elements; all arrays hold bits."""

    operation: Operation
    first: bool
    g_format: int
    w_format: int
    scalars: dict[str, float]
    g: Bits
    m: Bits
    v: Bits
    p: Bits


def random_scalar(rng: np.random.Generator, name: str) -> float:
    """A contract scalar: mostly such as training has, else any +0 or normal."""
    usual = {
        "scale": 1 / 64,
        "b1": 0.9,
        "c1": 0.1,
        "b2": 0.999,
        "c2": 0.001,
        "r2": 1.3,
        "eps": 1e-8,
        "k": 0.9999,
        "s": 1e-3,
    }
    kind = rng.random()
    if kind < 0.1:
        return 0.0
    if kind < 0.7:
        return float(np.float32(usual[name] * rng.uniform(0.5, 2)))
    negative = name in SIGNED and rng.random() < 0.5
    bits = np.uint32(int(negative) << 31 | int(rng.integers(1, 255)) << 23 | int(rng.integers(1 << 23)))
    return float(bits.view(np.float32))


def random_values(rng: np.random.Generator, count: int) -> Bits:
    """fp32 bits: magnitudes as in training, any bits, and special values of either sign."""
    usual = (rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 1)).astype(np.float32).view(np.uint32)
    any_bits = rng.integers(1 << 32, size=count, dtype=np.uint32)
    special = rng.choice(SPECIAL, count) | (any_bits & np.uint32(1 << 31))
    kind = rng.random(count)
    return np.where(kind < 0.7, usual, np.where(kind < 0.9, any_bits, special))


def random_work(rng: np.random.Generator, length: int, operation: Operation | None = None) -> Work:
    """An operation on ``length`` elements, any kind but for what is given."""
    if operation is None:
        operation = Operation(int(rng.integers(len(Operation))))
    g_format = int(rng.integers(3))
    g = random_values(rng, length)
    if FORMATS[g_format] is not Format.FP32:
        g = rng.integers(1 << 16, size=length, dtype=np.uint32)
    v = random_values(rng, length) & np.uint32(0x7FFF_FFFF)
    # A NaN may have a sign: it is any NaN.
    v = np.where(np.isnan(v.view(np.float32)), v | rng.integers(2, size=length, dtype=np.uint32) << np.uint32(31), v)
    return Work(
        operation=operation,
        first=bool(rng.integers(2)),
        g_format=g_format,
        w_format=int(rng.integers(3)),
        scalars={name: random_scalar(rng, name) for name in SCALARS},
        g=g,
        m=random_values(rng, length),
        v=v.astype(np.uint32),
        p=random_values(rng, length),
    )


def carried(bits: Bits, fmt: Format) -> NDArray:
    """The array that carries these bits in ``fmt``."""
    if fmt is Format.FP32:
        return bits.view(np.float32)
    low = bits.astype(np.uint16)
    return low if fmt is Format.BF16 else low.view(np.float16)


def expected(work: Work) -> dict[str, Bits]:
    """The bits of each output that the operation gives, by the golden model."""
    g, m, v, p = carried(work.g, FORMATS[work.g_format]), *(x.view(np.float32) for x in (work.m, work.v, work.p))
    c = work.scalars
    if work.operation in (Operation.FOLD, Operation.FOLD_APPLY):
        scalars = FoldScalars(c["b1"], c["c1"], c["b2"], c["c2"])
        m, v = golden.fold(m, v, g, scalars, scale=c["scale"], first=work.first)
    if work.operation in (Operation.APPLY, Operation.FOLD_APPLY):
        p = golden.apply(p, m, v, ApplyScalars(c["r2"], c["eps"], c["k"], c["s"]))
    if work.operation is Operation.ACCUMULATE:
        m = golden.accumulate(m, g, first=work.first)
    wire = narrow(p, FORMATS[work.w_format])
    bits = {"m": m.view(np.uint32), "v": v.view(np.uint32), "p": p.view(np.uint32), "wire": _bits(wire)}
    return {name: bits[name] for name in RESULTS[work.operation]}


def has_nonfinite_gradient(work: Work) -> bool:
    """Whether the sticky flag must be set at the end of the operation."""
    if work.operation in (Operation.APPLY, Operation.FETCH):
        return False
    return not bool(np.isfinite(widen(carried(work.g, FORMATS[work.g_format]))).all())


def _bits(wire: NDArray) -> Bits:
    unsigned = wire.view(np.uint32 if wire.dtype == np.float32 else np.uint16)
    return unsigned.astype(np.uint32)


def same(got: Bits, wanted: Bits, fmt: Format = Format.FP32) -> NDArray[np.bool_]:
    """Where the bits are equal, or both are NaN."""

    def is_nan(bits: Bits) -> NDArray:
        if fmt is Format.FP32:
            return np.isnan(bits.view(np.float32))
        return np.isnan(widen(carried(bits, fmt))) & (bits < 1 << 16)

    return (got == wanted) | (is_nan(got) & is_nan(wanted))


def beats(rng: np.random.Generator, works: list[Work], lanes: int, places: Places, words: int) -> Words:
    """The payloads of all works, one after another; lanes that a tail leaves empty are poisoned."""
    return np.concatenate([_beats_of(rng, work, lanes, places, words) for work in works])


def _beats_of(rng: np.random.Generator, work: Work, lanes: int, places: Places, words: int) -> Words:
    length = len(work.g)
    count = -(-length // lanes)
    columns: dict[str, NDArray] = {
        "operation": np.full(count, int(work.operation)),
        "first": np.full(count, int(work.first)),
        "last": np.arange(count) == count - 1,
        "g_format": np.full(count, work.g_format),
        "w_format": np.full(count, work.w_format),
    }
    for name in SCALARS:
        columns[f"scalars.{name}"] = np.full(count, np.float32(work.scalars[name]).view(np.uint32))
    occupied = (np.arange(count * lanes) < length).reshape(count, lanes)
    columns["mask"] = (occupied.astype(np.uint32) << np.arange(lanes, dtype=np.uint32)).sum(axis=1)
    for name in "gmvp":
        poison = rng.choice(np.array([0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFFFF_FFFF], np.uint32), count * lanes)
        poison[:length] = getattr(work, name)
        for lane in range(lanes):
            columns[f"elements.{lane}.{name}"] = poison.reshape(count, lanes)[:, lane]
    return pack(places, columns, words)


def mismatches(works: list[Work], got: Words, lanes: int, places: Places) -> Iterator[str]:
    """What differs from the golden model, in words; nothing if all bits are right."""
    at = 0
    for number, work in enumerate(works):
        length = len(work.g)
        count = -(-length // lanes)
        rows = got[at : at + count]
        at += count
        name = f"operation {number} ({work.operation.name}, {length} elements)"
        yield from _control_mismatches(name, work, rows, lanes, places)
        for output, wanted in expected(work).items():
            fmt = FORMATS[work.w_format] if output == "wire" else Format.FP32
            columns = [unpack(places, f"elements.{lane}.{output}", rows) for lane in range(lanes)]
            bits = np.stack(columns, axis=1).ravel()[:length]
            wrong = np.flatnonzero(~same(bits, wanted, fmt))
            if wrong.size:
                element = int(wrong[0])
                yield (
                    f"{name}: {wrong.size} elements of {output} differ; element {element} is {bits[element]:#x}, "
                    f"not {wanted[element]:#x}: g {work.g[element]:#x}, m {work.m[element]:#x}, "
                    f"v {work.v[element]:#x}, p {work.p[element]:#x}, first {work.first}, {work.scalars}"
                )


def _control_mismatches(name: str, work: Work, rows: Words, lanes: int, places: Places) -> Iterator[str]:
    count = len(rows)
    tail = len(work.g) - (count - 1) * lanes
    mask = np.full(count, (1 << lanes) - 1)
    mask[-1] = (1 << tail) - 1
    if not np.array_equal(unpack(places, "mask", rows), mask):
        yield f"{name}: the mask did not stay with its elements"
    if not np.array_equal(unpack(places, "last", rows), np.arange(count) == count - 1):
        yield f"{name}: `last` is not on the last beat"
    if bool(unpack(places, "nonfinite", rows)[-1]) != has_nonfinite_gradient(work):
        yield f"{name}: the flag of a non-finite gradient is {not has_nonfinite_gradient(work)}"
    if unpack(places, "outside", rows).any():
        yield f"{name}: scalars within the contract are flagged"
