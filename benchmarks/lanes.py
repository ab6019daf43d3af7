"""Speed of the lanes under Verilator: elements a second, and how long the build takes. A simulation, no hardware.

One lane with shallow pipelines, fold-and-apply; compiled by each of clang++ and g++ that is there, in one interleaved
run; by one thread, and by two models in two threads. Each build is timed in an empty cache.

    python benchmarks/lanes.py
    python benchmarks/lanes.py --elements 200000 --rounds 3 --json out.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.timing import interleave
from relay_eps_hw.lane.beat import Operation
from relay_eps_sim.lanes import SimulatedLanes
from relay_eps_sim.packing import Words
from tests.hw.lane.workload import beats, random_work

ELEMENTS = 400_000
WANTED_RATE = 1e6
WANTED_BUILD = 180.0


def payloads(sim: SimulatedLanes, elements: int) -> Words:
    """Fold-and-apply operations of a thousand elements each, with random scalars and values."""
    rng = np.random.default_rng(1)
    works = [random_work(rng, 1000, Operation.FOLD_APPLY) for _ in range(max(elements // 1000, 1))]
    return beats(rng, works, sim.lanes, sim.places_in, sim.words_in)


def compilers() -> list[str]:
    """Those of clang++ and g++ that are installed, or what CXX names."""
    named = os.environ.get("CXX")
    return [named] if named else [name for name in ("clang++", "g++") if shutil.which(name)]


def build(compiler: str) -> tuple[SimulatedLanes, SimulatedLanes, float]:
    """Two models of one lane, and the seconds that the first took in an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"RELAY_EPS_CACHE": cache, "CXX": compiler}
        start = time.perf_counter()
        first = SimulatedLanes(1)
        return first, SimulatedLanes(1), time.perf_counter() - start


def measure(elements: int, rounds: int) -> list[dict[str, Any]]:
    """For each compiler, seconds of the build, and millions of elements a second of one thread and of two."""
    models = {compiler: build(compiler) for compiler in compilers()}
    sent = payloads(next(iter(models.values()))[0], elements)
    runs: dict[str, Callable[[], object]] = {}
    with ThreadPoolExecutor(2) as pool:
        for compiler, (first, second, _) in models.items():
            runs[f"{compiler} 1"] = partial(first.run, sent)
            runs[f"{compiler} 2"] = partial(_at_once, pool, (first, second), sent)
        times = interleave(runs, rounds)
    rows = []
    for compiler, (_, _, seconds) in models.items():
        for threads in (1, 2):
            found = times[f"{compiler} {threads}"]
            rate = threads * len(sent) / found.median / 1e6
            rows.append(
                {
                    "compiler": compiler,
                    "build_seconds": seconds,
                    "threads": threads,
                    "million_elements_a_second": rate,
                    "spread": found.spread,
                }
            )
    return rows


def _at_once(pool: ThreadPoolExecutor, models: tuple[SimulatedLanes, ...], sent: Words) -> None:
    list(pool.map(lambda model: model.run(sent), models))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments.elements, arguments.rounds)
    print(f"wanted: a build under {WANTED_BUILD:.0f} s, {WANTED_RATE / 1e6:.0f} million elements a second")
    for row in found:
        threads = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
        rate = f"{row['million_elements_a_second']:.2f} million elements a second (spread {row['spread']:.0%})"
        print(f"{row['compiler']}: built in {row['build_seconds']:.0f} s; {threads}: {rate}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
