"""The options of ``train`` and ``resume``: types with their help, in the panels that ``--help`` shows."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from relay_eps.eps.formats import Format

_MODEL = "Model"
_TRAINING = "Training"
_RELAY = "Relay and parameter server"
_RUN = "Run"
_OUTPUT = "Output"


class Mode(str, Enum):
    """How micro-batch gradients become an update."""

    EXACT = "exact"
    ADAMA = "adama"


class Stash(str, Enum):
    """Where layer inputs wait for the backward."""

    DEVICE = "device"
    HOST = "host"


# Optional[...] and not `| None`: typer reads these at run time, and its oldest supported version knows no other.
Paths = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Argument(
        help="Text files, and folders with text files in them. Default: the source of this Python's library.",
        show_default=False,
    ),
]
Layers = Annotated[int, typer.Option(help="Transformer blocks.", rich_help_panel=_MODEL)]
Width = Annotated[int, typer.Option(help="Features of a position.", rich_help_panel=_MODEL)]
Heads = Annotated[int, typer.Option(help="Attention heads; they divide the width.", rich_help_panel=_MODEL)]
Context = Annotated[int, typer.Option(help="Sequence length in bytes.", rich_help_panel=_MODEL)]
Dropout = Annotated[float, typer.Option(help="Share of activations dropped in training.", rich_help_panel=_MODEL)]
Tied = Annotated[
    bool,
    typer.Option("--tied", metavar="", help="Share the embedding's weight with the head.", rich_help_panel=_MODEL),
]

Batch = Annotated[int, typer.Option(help="Sequences a step.", rich_help_panel=_TRAINING)]
MicroBatch = Annotated[
    int, typer.Option(help="Sequences that the device works on at a time.", rich_help_panel=_TRAINING)
]
Steps = Annotated[int, typer.Option(help="Steps in all.", rich_help_panel=_TRAINING)]
Rate = Annotated[
    float, typer.Option("--lr", help="Highest learning rate; a cosine takes it to a tenth.", rich_help_panel=_TRAINING)
]
Warmup = Annotated[int, typer.Option(help="Steps in which the learning rate rises.", rich_help_panel=_TRAINING)]
WeightDecay = Annotated[float, typer.Option(help="Decoupled weight decay (AdamW's).", rich_help_panel=_TRAINING)]
Clip = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        help="Clip gradients to this global norm. Defers updates to the end of the backward, "
        "and costs 4 bytes a parameter in the EPS.",
        show_default="none",
        rich_help_panel=_TRAINING,
    ),
]
Seed = Annotated[int, typer.Option(help="Of weights, data order and dropout.", rich_help_panel=_TRAINING)]

ModeOption = Annotated[
    Mode,
    typer.Option(
        help="exact: Adam's own result. adama: fold each micro-batch's gradient into the moments at once; "
        "less device memory, and with several micro-batches a slightly different rule.",
        rich_help_panel=_RELAY,
    ),
]
StashOption = Annotated[
    Stash,
    typer.Option(
        help="Where layer inputs wait for the backward. On the host, device memory does not grow with depth.",
        rich_help_panel=_RELAY,
    ),
]
WireOption = Annotated[Format, typer.Option(help="Format of the weights on the device.", rich_help_panel=_RELAY)]
Server = Annotated[
    str, typer.Option("--eps", help="Parameter server. This version has one: software.", rich_help_panel=_RELAY)
]
LinkGbps = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        help="Stream weights over a modelled link of so many gigabits a second, as to a device of its own. "
        "Default: a CPU uses them where they lie.",
        show_default=False,
        rich_help_panel=_RELAY,
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.", rich_help_panel=_RELAY)]
Threads = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        help="Threads for torch, and for the EPS.", show_default="what this process may use", rich_help_panel=_RELAY
    ),
]

Out = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="The run's folder.", show_default="runs/001, 002, ...", rich_help_panel=_RUN),
]
SaveEvery = Annotated[
    int,
    typer.Option(help="Save a checkpoint every so many steps. 0: at the end and at Ctrl-C only.", rich_help_panel=_RUN),
]
EvalEvery = Annotated[
    int,
    typer.Option(help="Work out the validation loss every so many steps. 0: first and last.", rich_help_panel=_RUN),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        metavar="",
        help="Time plain PyTorch (gradient accumulation, fused AdamW) on the same model in between. "
        "It takes memory of its own, 16 bytes a parameter.",
        rich_help_panel=_RUN,
    ),
]
LogDir = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--logdir", help="Write TensorBoard logs here.", show_default=False, rich_help_panel=_OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="Print only the last line.", rich_help_panel=_OUTPUT)
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        metavar="",
        help="Print one JSON object a line (start, step, eval, save, end).",
        rich_help_panel=_OUTPUT,
    ),
]

Folder = Annotated[Path, typer.Argument(help="The folder of a run that `relay-eps train` has written.")]
MoreSteps = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--steps",
        help="Steps in all, those done included. Another number than before stretches the learning rate's cosine.",
        show_default="as the run was started",
    ),
]
