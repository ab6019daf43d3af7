"""Speed of the lanes under Verilator: elements a second, and how long the build takes. A simulation, no hardware.

One lane with shallow pipelines, fold-and-apply; by one thread, and by two models in two threads. The build is timed in
an empty cache.

    python benchmarks/lanes.py
    python benchmarks/lanes.py --elements 200000 --rounds 3 --json out.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def measure(elements: int, rounds: int) -> dict[str, float]:
    """Seconds of the build, and millions of elements a second of one thread and of two."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RELAY_EPS_CACHE"] = cache
        start = time.perf_counter()
        one = SimulatedLanes(1)
        build = time.perf_counter() - start
        two = [one, SimulatedLanes(1)]
    sent = payloads(one, elements)
    with ThreadPoolExecutor(2) as pool:
        times = interleave(
            {
                "one thread": lambda: one.run(sent),
                "two threads": lambda: list(pool.map(lambda sim: sim.run(sent), two)),
            },
            rounds,
        )
    return {
        "build_seconds": build,
        "one_thread": len(sent) / times["one thread"].median / 1e6,
        "one_thread_spread": times["one thread"].spread,
        "two_threads": 2 * len(sent) / times["two threads"].median / 1e6,
        "two_threads_spread": times["two threads"].spread,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments.elements, arguments.rounds)
    print(f"build in an empty cache: {found['build_seconds']:.0f} s (wanted: under {WANTED_BUILD:.0f})")
    for name in ("one_thread", "two_threads"):
        text = f"{found[name]:.2f} million elements a second (spread {found[f'{name}_spread']:.0%})"
        print(f"{name.replace('_', ' ')}: {text} (wanted: {WANTED_RATE / 1e6:.0f})")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
