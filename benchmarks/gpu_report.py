"""What `benchmarks/gpu.py` measured, and its tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.table import print_table
from relay_eps.models.gpt_config import GptConfig

MIB = 2**20
#: Streaming has reached resident speed at this share of it.
REACHED = 0.95

Rows = Sequence[dict[str, Any]]


@dataclass
class Found:
    """Everything that was measured; part by part, a row a point."""

    machine: dict[str, Any]
    equality: list[dict[str, Any]] = field(default_factory=list)
    peaks: list[dict[str, Any]] = field(default_factory=list)
    speed: list[dict[str, Any]] = field(default_factory=list)
    overlap: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def report(found: Found, model: GptConfig, micro_batch: int) -> None:
    """Print every table."""
    for name, value in found.machine.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
    if found.machine["modelled"]:
        print("NO GPU: a modelled link on a CPU, at a small size. This shows that the script works, and nothing more.")
    print_table(
        "1. Weights that differ from plain PyTorch's gradients through the golden rule after 5 steps (wanted: 0)",
        ("wire, stash", "micro-batches", "clipped", "weights", "differ"),
        [
            (
                f"{r['wire']}, {r['stash']}",
                f"{r['micro_batches']}",
                "yes" if r["clipped"] else "no",
                f"{r['weights']:,}",
                f"{r['differ']}",
            )
            for r in found.equality
        ],
    )
    print_table(
        "2. Device peak, stash on the host",
        ("over", "", "peak"),
        [(r["over"], f"{r['value']}", f"{r['bytes'] / MIB:,.2f} MiB") for r in found.peaks],
    )
    print_speed(
        f"3. Tokens/s over tokens a layer load; {model.layers} blocks of width {model.width}, "
        f"micro-batches of {micro_batch * model.context:,} tokens",
        found.speed,
    )
    print_table(
        "4. Overlap: milliseconds a step; hidden is the share of the shorter of the two that costs no time",
        ("tokens a load", "transfers and updates", "computing", "both, in turn", "relay", "hidden"),
        map(overlap_row, found.overlap),
    )
    print("\nleft out for lack of time or memory: " + ("; ".join(found.left_out) or "nothing"))


def print_speed(title: str, rows: Rows) -> None:
    names, overs = ("streamed", "resident", "checkpointed"), ("resident", "checkpointed")
    head = ("tokens a load", *names, *(f"streamed/{over}" for over in overs))
    print_table(
        title,
        head,
        [
            (
                f"{r['tokens']:,}",
                *(f"{r[name]:,.0f}" for name in names),
                *(f"{r['streamed'] / r[over]:.3f}" for over in overs),
            )
            for r in rows
        ],
    )
    for over in overs:
        at = crossover(rows, over)
        reached = "not reached in this range" if at is None else f"at about {at:,.0f} tokens a layer load"
        print(f"  {REACHED:.0%} of {over} training: {reached}")


def overlap_row(row: dict[str, Any]) -> tuple[str, ...]:
    alone, computing, relay = row["transfers and updates"], row["computing"], row["relay"]
    hidden = max(0.0, min(1.0, (alone + computing - relay) / min(alone, computing)))
    seconds = (alone, computing, alone + computing, relay)
    return (f"{row['tokens']:,}", *(f"{1e3 * s:,.1f}" for s in seconds), f"{hidden:.0%}")


def crossover(rows: Rows, over: str) -> float | None:
    """Tokens a layer load at which streaming reaches `REACHED` of ``over``, between two points on a log scale."""
    shares = [(row["tokens"], row["streamed"] / row[over]) for row in rows]
    for (t0, s0), (t1, s1) in itertools.pairwise(shares):
        if s0 < REACHED <= s1:
            return float(t0 * (t1 / t0) ** ((REACHED - s0) / (s1 - s0)))
    return float(shares[0][0]) if shares and shares[0][1] >= REACHED else None
