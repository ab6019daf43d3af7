"""A run that saves after every step and is killed anywhere ends, resumed, with the bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relay_eps.checkpoint import newest
from tests.host.checkpoint.states import contents
from tests.host.kill_points import POINTS, STEPS

ROOT = Path(__file__).parents[2]
#: Another seed draws other kills: `RELAY_EPS_KILL_SEED=7 pytest tests/host/test_kill.py`.
SEED = int(os.environ.get("RELAY_EPS_KILL_SEED", "1"))


def kills(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The driver's lines: the first tells how often each point was called, the others are cases."""
    command = [sys.executable, "-m", "tests.host.kill_points", str(folder), "--seed", str(SEED), *arguments]
    # The driver forks: numpy's own threads must not be there.
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    return [json.loads(line) for line in ran.stdout.splitlines()]


def assert_resumed(folder: Path, case: dict[str, Any]) -> None:
    """The resumed run started where the killed one had last saved, at least, and ended as if nothing had happened."""
    place = folder / case["folder"]
    errors = place.with_name(place.name + ".err").read_text()
    assert case["codes"][-1] == 0, f"{case}: {errors}"
    step = 0
    for line in place.with_name(place.name + ".log").read_text().splitlines():
        before, step = step, int(line.split()[1])
        assert step >= before, f"{case}: saved steps were lost"
    last = place / f"step-{STEPS:08d}"
    assert newest(place) == last
    assert contents(last) == contents(folder / case["mode"] / last.name), case


def assert_every_kill_is_survived(folder: Path, cases: int) -> None:
    counted, *found = kills(folder, "--cases", str(cases))
    assert len(found) == cases
    for point in POINTS:
        assert any(counts[point] for counts in counted["counts"].values()), f"{point} is never reached"
    for case in found:
        assert case["codes"][0] == -signal.SIGKILL, f"{case} was not killed"
        assert_resumed(folder, case)


def test_killed_at_eight_named_points(tmp_path: Path) -> None:
    assert_every_kill_is_survived(tmp_path, 8)


@pytest.mark.slow
def test_killed_at_fifty_named_points(tmp_path: Path) -> None:
    assert_every_kill_is_survived(tmp_path, 50)


@pytest.mark.slow
def test_killed_three_times_at_random_moments(tmp_path: Path) -> None:
    found = kills(tmp_path, "--times", "--cases", "12")
    assert any(code == -signal.SIGKILL for case in found for code in case["codes"])
    for case in found:
        assert_resumed(tmp_path, case)
