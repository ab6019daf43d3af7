"""The commands of ``relay-eps`` and what they have in common."""

from __future__ import annotations

from typing import Annotated

import typer

import relay_eps
from relay_eps.cli.doctor import doctor
from relay_eps.cli.errors import show_warnings_plainly
from relay_eps.cli.extras import add_commands
from relay_eps.cli.train import RESUME_HELP, TRAIN_HELP, resume, train

app = typer.Typer(
    name="relay-eps",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(help=TRAIN_HELP)(train)
app.command(help=RESUME_HELP)(resume)
app.command()(doctor)
add_commands(app)


def run() -> None:
    """Run the command line with the process's arguments."""
    show_warnings_plainly()
    app()


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"relay-eps {relay_eps.__version__}")
        raise typer.Exit


@app.callback()
def relay(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train networks larger than the device that computes them, through an eager parameter server (EPS).

    [bold]relay-eps train[/bold]               a small GPT, on this Python's own source
    [bold]relay-eps train --compare[/bold]     the same, timed against plain PyTorch
    [bold]relay-eps train my-texts/[/bold]     on your own text
    [bold]relay-eps resume runs/001[/bold]     go on after Ctrl-C
    [bold]relay-eps doctor[/bold]              what this machine has, and what it lacks
    [bold]relay-eps hw[/bold]                  the optimiser as FPGA logic: Verilog, area and clock
    """
