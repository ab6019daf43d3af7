"""Every benchmark runs, at a tiny size, and prints its table. What it measures is not judged here."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import adama, budget, eps, gpu, lanes, memory, relay
from benchmarks.budget import Budget
from benchmarks.timing import Times, interleave, ratio

QUICK = {
    "eps": (eps, ["--parameters", "1e4", "--threads", "1", "--rounds", "2"], "fold_apply, speed over torch's"),
    "relay": (
        relay,
        ["--layers", "2", "--width", "16", "--batch", "8", "--micro-batches", "2", "--rounds", "2"],
        "over plain",
    ),
    "relay, gpt": (
        relay,
        ["--model", "gpt", "--layers", "1", "--width", "16", "--batch", "4", "--micro-batches", "2", "--rounds", "2"],
        "over plain",
    ),
    "memory": (
        memory,
        ["--layers", "2", "--width", "32", "--depths", "2", "3", "--micro-batches", "1", "2"],
        "layers beyond",
    ),
    "gpu": (gpu, ["--modelled", "--minutes", "0.05"], "NO GPU"),
    "lanes": (lanes, ["--elements", "1000", "--rounds", "2"], "elements a second"),
    "adama": (adama, ["--steps", "2", "--seeds", "1", "--micro-batches", "2", "--lr", "1e-3"], "nats a byte"),
}


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the benchmark writes as JSON."""
    module: ModuleType
    module, options, _ = QUICK[name]
    file = folder / "figures.json"
    monkeypatch.setattr(sys, "argv", [name, *options, "--json", str(file)])
    module.main()
    return json.loads(file.read_text())


@pytest.mark.parametrize("name", QUICK)
def test_a_benchmark_prints_its_table_and_writes_json(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, tmp_path, monkeypatch)
    assert QUICK[name][2] in capsys.readouterr().out


def test_the_gpu_benchmark_finds_equal_bits_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A clock of its own: how much fits in the time is then the same on every machine.
    looks = count()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: 0.1 * next(looks)))
    found = run("gpu", tmp_path, monkeypatch)
    assert all(found[part] for part in ("equality", "peaks", "speed", "overlap"))
    assert all(row["differ"] == 0 for row in found["equality"])
    assert "left out for lack of time or memory: equality" in capsys.readouterr().out
    assert len(found["left_out"]) > 1


# --- what they share


def test_contenders_take_turns() -> None:
    order: list[str] = []
    times = interleave({name: lambda name=name: order.append(name) for name in "abc"}, 3, warmup=1)  # type: ignore[misc]
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert all(len(t.seconds) == 3 for t in times.values())


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    slow, fast = Times("slow", (2.0, 40.0, 6.0)), Times("fast", (1.0, 10.0, 2.0))
    assert ratio(slow, fast) == 3
    assert slow.median == 6


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(budget, "time", stopped)
    return stopped


def test_a_part_takes_its_share_and_says_what_it_left_out(clock: Clock) -> None:
    kept = Budget(100, {"a": 1, "b": 3})
    done = []
    for point in kept.points("a", [4, 8, 16, 1], float):
        done.append(point)
        clock.now += point
    assert done == [4, 8, 1], "16 would have gone over the 25 seconds"
    assert kept.left_out == ["a: 16"]


def test_what_one_part_leaves_the_next_may_use(clock: Clock) -> None:
    kept = Budget(100, {"a": 1, "b": 3})
    assert list(kept.points("a", [], float)) == []
    taken = []
    for point in kept.points("b", [1] * 100, float):
        taken.append(point)
        clock.now += 1
    assert 97 <= len(taken) <= 99
    assert clock.now <= 200


def test_the_first_point_is_always_begun_but_not_after_the_end(clock: Clock) -> None:
    kept = Budget(10, {"a": 1, "b": 1, "c": 1})
    for _ in kept.points("a", [5], float):
        clock.now += 9
    for _ in kept.points("b", [5], float):
        clock.now += 9
    assert list(kept.points("c", [5], float)) == []
    assert kept.left_out == ["c: 5"]
