"""``relay-eps doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from relay_eps import doctor as examination


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what this machine has, what therefore works, and what to install for the rest."""
    diagnosis = examination.examine()
    typer.echo(examination.to_json(diagnosis) if json else "\n".join(examination.lines(diagnosis)))
