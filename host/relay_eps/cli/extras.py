"""Commands of packages beyond this library, found through entry points: the library imports none of them by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import typer

GROUP = "relay_eps.commands"


def add_commands(app: typer.Typer) -> None:
    """Add every command that an installed package offers in `GROUP`; its name is that of the extra it needs.

    One that cannot be loaded stays listed and says, in one sentence, what to install: the others work without it.
    """
    for command in sorted(entry_points(group=GROUP), key=lambda command: command.name):
        try:
            # Each is light: what it needs beyond this library it imports when it is called.
            loaded = command.load()
        # A package half installed can fail in any way, and must not take `relay-eps doctor` with it.
        except Exception as error:
            _add_stand_in(app, command, error)
        else:
            app.add_typer(loaded, name=command.name)


def _add_stand_in(app: typer.Typer, command: EntryPoint, error: Exception) -> None:
    text = f"relay-eps {command.name} cannot be loaded ({error}): pip install 'relay-eps[{command.name}]'"

    # Whatever follows the command's name, --help included, is answered with that sentence.
    @app.command(
        command.name,
        help=f"Not available: pip install 'relay-eps[{command.name}]'".replace("[", r"\["),
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )
    def stand_in() -> None:
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(1)
