"""What AdamA's rule does to training: a small GPT with N micro-batches, exact Adam against AdamA, by learning rate.

Both train the same model on the same text in the same order; only the rule that turns gradients into moments differs.
The figures are validation losses in nats a byte, each the last of its run.

    python benchmarks/adama.py                     # N = 8, three rates, two seeds: about ten minutes on two cores
    python benchmarks/adama.py --steps 20 --seeds 1  # a quick look
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from relay_eps.data import TextData
from relay_eps.models.gpt import Gpt, next_byte_loss
from relay_eps.models.gpt_config import GptConfig
from relay_eps.relay import Relay


@dataclass(frozen=True)
class Setting:
    """One run's rule."""

    mode: str
    lr: float
    seed: int


@dataclass(frozen=True)
class Job:
    """What all runs share."""

    model: GptConfig
    batch: int
    micro_batches: int
    steps: int


def validation_loss(job: Job, setting: Setting, data: TextData) -> float:
    """Train one run and return its validation loss in nats a byte."""
    context = job.model.context
    held_out = [torch.from_numpy(a) for a in data.validation_batch(sequences=128, context=context)]
    with Relay(
        Gpt(job.model, setting.seed),
        lr=setting.lr,
        mode=setting.mode,
        micro_batch=job.batch // job.micro_batches,
        seed=setting.seed,
    ) as relay:
        schedule = torch.optim.lr_scheduler.LambdaLR(relay.optimizer, lambda step: min(1.0, (step + 1) / 20))
        for step in range(job.steps):
            inputs, targets = data.batch(seed=setting.seed, step=step, batch=job.batch, context=context)
            relay.step(torch.from_numpy(inputs), torch.from_numpy(targets), next_byte_loss)
            schedule.step()
        return relay.evaluate(held_out[0], held_out[1], next_byte_loss)


def report(job: Job, found: Sequence[tuple[Setting, float]]) -> None:
    """The table: rules down, learning rates across, the median over seeds in each cell."""
    rates = sorted({setting.lr for setting, _ in found}, reverse=True)
    print(
        f"\nbyte-level GPT of {job.model.layers} blocks, width {job.model.width}, batch {job.batch} in "
        f"{job.micro_batches} micro-batches, validation loss in nats a byte after {job.steps} steps"
    )
    print(f"  {'rule':8}" + "".join(f"  lr {lr:<8g}" for lr in rates))
    for mode in ("exact", "adama"):
        cells = [[loss for s, loss in found if s.mode == mode and s.lr == lr] for lr in rates]
        print(f"  {mode:8}" + "".join(f"  {statistics.median(c):<11.3f}" for c in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--lr", type=float, nargs="+", default=[4e-3, 2e-3, 1e-3])
    parser.add_argument("--json", type=Path, help="write every loss to this file")
    options = parser.parse_args()
    job = Job(
        GptConfig(layers=2, width=96, context=96), 2 * options.micro_batches, options.micro_batches, options.steps
    )
    data = TextData.load()
    found = []
    for seed in range(options.seeds):
        for lr in options.lr:
            for mode in ("exact", "adama"):
                setting = Setting(mode, lr, seed)
                found.append((setting, validation_loss(job, setting, data)))
                print(f"  {mode} lr {lr:g} seed {seed}: {found[-1][1]:.3f}", flush=True)
    report(job, found)
    if options.json:
        runs = [{**asdict(setting), "loss": loss} for setting, loss in found]
        options.json.write_text(json.dumps({"job": asdict(job), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
