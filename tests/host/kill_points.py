"""Trains a tiny model that kills itself at named points, and resumes it; run as a module by `test_kill`.

Everything is imported once and each training is a forked process. A training saves after every step and writes to its
log where it started and what it saved. With a point, product functions are wrapped so that the process sends itself
SIGKILL just before or just after the n-th call; nothing in the product knows of this.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relay_eps.checkpoint import newest, writer
from relay_eps.eps import HostEPS
from relay_eps.eps.kernels import KernelArithmetic
from relay_eps.relay import Relay

STEPS = 4
#: Options of the relay that commit in different ways; the calls that an EPS layer gets differ with them.
MODES: dict[str, dict[str, Any]] = {
    "exact": {},
    "adama": {"mode": "adama"},
    "deferred": {"max_grad_norm": 1.0},
}
#: What is counted: the server's calls as the engine makes them, the kernels as a worker runs them, the file operations.
POINTS: dict[str, tuple[Any, str]] = {
    "fold": (HostEPS, "fold"),
    "apply": (HostEPS, "apply"),
    "fold and apply": (HostEPS, "fold_apply"),
    "accumulate": (HostEPS, "accumulate"),
    "fold kernel": (KernelArithmetic, "fold"),
    "fold-and-apply kernel": (KernelArithmetic, "fold_apply"),
    "tensors": (writer, "save_file"),
    "manifest": (Path, "write_bytes"),
    "sync": (writer, "sync"),
    "rename": (writer, "move"),
    "removal": (writer, "discard"),
    "removal of a file": (os, "unlink"),
}


@dataclass(frozen=True)
class Kill:
    """Die in the ``number``-th call (from 1) of a point, ``after`` it or before it."""

    mode: str
    point: str
    after: bool
    number: int


# --- the training


class Gate(nn.Module):
    """Its parameter gets no gradient from the mini-batch's last, shorter micro-batch, and so an apply of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain if len(x) == 3 else x * 1.0


def train(folder: Path, mode: str, log: Callable[[str], None]) -> None:
    """Train to ``STEPS`` from the newest checkpoint in ``folder``, or from the start, and save after every step."""
    torch.manual_seed(1)
    block = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.2))
    model = nn.Sequential(block, Gate(), nn.Linear(5, 3))
    gates = [model[1].gain]
    others = [p for p in model.parameters() if p is not gates[0]]
    with Relay(model, params=[{"params": others}, {"params": gates, "lr": 0.1}], micro_batch=3, **MODES[mode]) as relay:
        schedule = torch.optim.lr_scheduler.MultiStepLR(relay.optimizer, [1, 3], gamma=0.5)
        if newest(folder) is not None:
            schedule.load_state_dict(relay.load(folder)["schedule"])
        log(f"from {relay.steps_done}")
        while relay.steps_done < STEPS:
            generator = torch.Generator().manual_seed(relay.steps_done)
            inputs, labels = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
            relay.step(inputs, labels, nn.functional.cross_entropy)
            schedule.step()
            relay.save(folder, {"schedule": schedule.state_dict()})
            log(f"saved {relay.steps_done}")


# --- points


def count_calls() -> dict[str, int]:
    """Wrap every point to count its calls from now on; returns the counters."""
    counts = dict.fromkeys(POINTS, 0)
    for name, (owner, attribute) in POINTS.items():
        setattr(owner, attribute, _counting(getattr(owner, attribute), name, counts))
    return counts


def _counting(call: Callable[..., Any], name: str, counts: dict[str, int]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return call(*args, **kwargs)

    return counting


def arm(kill: Kill) -> None:
    """Wrap the point so that this process dies there."""
    owner, attribute = POINTS[kill.point]
    call, calls = getattr(owner, attribute), 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == kill.number and not kill.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args, **kwargs)
        if calls == kill.number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, deadly)


# --- processes


def start(folder: Path, work: Callable[[Callable[[str], None]], object]) -> int:
    """Fork a process that does ``work(log)``; the log and its errors go to files beside ``folder``. Returns its id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        errors = os.open(f"{folder}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 2)
        handle = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def log(line: str) -> None:
            os.write(handle, f"{line}\n".encode())

        work(log)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        os._exit(code)


def end(child: int) -> int:
    """Wait for a process; its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(folder: Path, mode: str, kill: Kill | None = None) -> int:
    """Train in a process of its own; its exit code, or minus the signal that killed it."""

    def work(log: Callable[[str], None]) -> None:
        if kill is not None:
            arm(kill)
        train(folder, mode, log)

    return end(start(folder, work))


def count(folder: Path, mode: str) -> dict[str, int]:
    """Calls of every point in one undisturbed training."""

    def work(log: Callable[[str], None]) -> None:
        counts = count_calls()
        train(folder, mode, log)
        folder.with_suffix(".counts").write_text(json.dumps(counts))

    code = end(start(folder, work))
    if code:
        raise RuntimeError(f"the undisturbed training failed: {Path(f'{folder}.err').read_text()}")
    return dict(json.loads(folder.with_suffix(".counts").read_text()))


# --- choices


def choose(counts: dict[str, dict[str, int]], cases: int, seed: int) -> list[Kill]:
    """``cases`` kills, drawn evenly over the points, each point as often as any other before it comes once more."""
    rng = random.Random(seed)
    points: list[str] = []
    kills = []
    for _ in range(cases):
        points = points or rng.sample(list(POINTS), len(POINTS))
        point = points.pop()
        mode = rng.choice([mode for mode in MODES if counts[mode][point]])
        kills.append(Kill(mode, point, rng.random() < 0.5, rng.randint(1, counts[mode][point])))
    return kills


def kill_at_points(folder: Path, cases: int, seed: int) -> None:
    """Print a line of JSON for each case: what was killed, how both processes ended."""
    counts = {mode: count(folder / mode, mode) for mode in MODES}
    print(json.dumps({"counts": counts}))
    for number, kill in enumerate(choose(counts, cases, seed)):
        place = folder / f"case {number}"
        codes = [run(place, kill.mode, kill), run(place, kill.mode)]
        print(json.dumps({"kill": asdict(kill), "mode": kill.mode, "folder": place.name, "codes": codes}))


def kill_at_times(folder: Path, cases: int, seed: int) -> None:
    """The same, three times in a row at random moments."""
    rng = random.Random(seed)
    for mode in MODES:
        count(folder / mode, mode)
    for number in range(cases):
        mode, place = rng.choice(list(MODES)), folder / f"case {number}"
        started = time.monotonic()
        code = run(folder / f"timed {number}", mode)
        whole, codes, delays = time.monotonic() - started, [code], []
        for _ in range(3):
            delays.append(rng.uniform(0, whole))
            child = start(place, lambda log, place=place, mode=mode: train(place, mode, log))  # type: ignore[misc]
            time.sleep(delays[-1])
            os.kill(child, signal.SIGKILL)
            codes.append(end(child))
        codes.append(run(place, mode))
        print(json.dumps({"kill": delays, "mode": mode, "folder": place.name, "codes": codes[1:]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", action="store_true", help="kill at random times instead of named points")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    # No thread may exist when a process forks. The first optimizer imports half of torch: once here, not in each.
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("threads are running, and a forked process would not have them")
    (kill_at_times if arguments.times else kill_at_points)(arguments.folder, arguments.cases, arguments.seed)


if __name__ == "__main__":
    main()
