"""``relay-eps train`` and ``relay-eps resume``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from relay_eps.cli import options as o
from relay_eps.cli.errors import reported
from relay_eps.cli.progress import Screen
from relay_eps.eps.formats import Format
from relay_eps.interrupt import EXIT_CODE as INTERRUPTED
from relay_eps.models.gpt_config import GptConfig
from relay_eps.training.config import SERVERS, TrainConfig
from relay_eps.training.events import Ended, Report
from relay_eps.training.folder import next_run
from relay_eps.training.reports import JsonLines, TensorBoard, fan_out, last_line

if TYPE_CHECKING:
    from relay_eps.training.run import Options

_RUNS = Path("runs")
_DEFAULT = TrainConfig()
_MODEL = _DEFAULT.model

TRAIN_HELP = """Train a byte-level GPT on text through the parameter server.

Ctrl-C finishes the step, saves, and says how to go on. A second one exits.
The last line sums up: validation loss, speed, device memory, EPS memory.

[bold]relay-eps train[/bold]
[bold]relay-eps train ~/notes --out runs/notes --save-every 200[/bold]
[bold]relay-eps train --layers 24 --stash host --link-gbps 32 --compare[/bold]
[bold]relay-eps train --mode adama --micro-batch 4 --json > log.jsonl[/bold]
"""
RESUME_HELP = """Go on with a run from its last checkpoint, bit for bit as if it had never stopped.

[bold]relay-eps resume runs/001[/bold]
[bold]relay-eps resume runs/001 --steps 2000[/bold]
"""


def train(
    paths: o.Paths = None,
    layers: o.Layers = _MODEL.layers,
    width: o.Width = _MODEL.width,
    heads: o.Heads = _MODEL.heads,
    context: o.Context = _MODEL.context,
    dropout: o.Dropout = _MODEL.dropout,
    tied: o.Tied = _MODEL.tied,
    batch: o.Batch = _DEFAULT.batch,
    micro_batch: o.MicroBatch = _DEFAULT.micro_batch,
    steps: o.Steps = _DEFAULT.steps,
    lr: o.Rate = _DEFAULT.lr,
    warmup: o.Warmup = _DEFAULT.warmup,
    weight_decay: o.WeightDecay = _DEFAULT.weight_decay,
    clip: o.Clip = _DEFAULT.clip,
    seed: o.Seed = _DEFAULT.seed,
    mode: o.ModeOption = o.Mode.EXACT,
    stash: o.StashOption = o.Stash.DEVICE,
    wire: o.WireOption = Format.FP32,
    eps: o.Server = _DEFAULT.eps,
    link_gbps: o.LinkGbps = _DEFAULT.link_gbps,
    device: o.Device = _DEFAULT.device,
    threads: o.Threads = _DEFAULT.threads,
    out: o.Out = None,
    save_every: o.SaveEvery = _DEFAULT.save_every,
    eval_every: o.EvalEvery = _DEFAULT.eval_every,
    compare: o.Compare = False,
    logdir: o.LogDir = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Start a new run; `TRAIN_HELP` is what the user reads."""
    if eps not in SERVERS:
        raise typer.BadParameter(
            f"{eps!r} is not a server of this version: it has {', '.join(SERVERS)}", param_hint="--eps"
        )
    folder = next_run(_RUNS) if out is None else out
    with reported(folder):
        config = TrainConfig(
            paths=tuple(str(p.absolute()) for p in paths or ()),
            model=GptConfig(layers, width, heads, context, dropout, tied),
            batch=batch,
            micro_batch=micro_batch,
            steps=steps,
            lr=lr,
            warmup=warmup,
            weight_decay=weight_decay,
            clip=clip,
            mode=mode.value,
            stash=stash.value,
            wire=wire.value,
            eps=eps,
            device=device,
            link_gbps=link_gbps,
            threads=threads,
            seed=seed,
            save_every=save_every,
            eval_every=eval_every,
        )
        from relay_eps.training import run

        with _reports(quiet=quiet, json=json, logdir=logdir) as report:
            ended = run.train(config, folder, report, _options(compare, quiet))
        _finish(ended, json=json)


def resume(
    folder: o.Folder,
    steps: o.MoreSteps = None,
    compare: o.Compare = False,
    logdir: o.LogDir = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Go on with a run; `RESUME_HELP` is what the user reads."""
    with reported(folder):
        from relay_eps.training import run

        with _reports(quiet=quiet, json=json, logdir=logdir) as report:
            ended = run.resume(folder, report, _options(compare, quiet), steps=steps)
        _finish(ended, json=json)


@contextmanager
def _reports(*, quiet: bool, json: bool, logdir: Path | None) -> Iterator[Report]:
    board = TensorBoard(logdir) if logdir is not None else None
    screen = Screen() if not json and not quiet else None
    shown: list[Callable[..., None]] = [r for r in (JsonLines() if json else None, screen, board) if r is not None]
    try:
        yield fan_out(shown)
    finally:
        for open_one in (screen, board):
            if open_one is not None:
                open_one.close()


def _options(compare: bool, quiet: bool) -> Options:
    from relay_eps.training.run import Options

    return Options(compare=compare, on_interrupt=None if quiet else _tell_of_interrupt)


def _tell_of_interrupt() -> None:
    # Written past Python's streams: the signal may have come in the middle of a write to one of them.
    os.write(2, b"\nfinishing this step and saving; Ctrl-C again exits at once\n")


def _finish(ended: Ended, *, json: bool) -> None:
    if ended.interrupted or not json:
        typer.echo(last_line(ended), err=json)
    if ended.interrupted:
        raise typer.Exit(INTERRUPTED)
