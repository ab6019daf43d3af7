"""Commands of other packages: found by entry point, and no trouble to the rest where they are broken."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
import typer
from typer.testing import CliRunner

from relay_eps.cli import extras

#: What another package might offer.
elsewhere = typer.Typer()


@elsewhere.command()
def greet() -> None:
    typer.echo("greetings from elsewhere")


def with_command(monkeypatch: pytest.MonkeyPatch, target: str) -> typer.Typer:
    """A command line with a command of its own, ``plain``, and one from elsewhere, ``other``."""
    found = EntryPoints([EntryPoint("other", target, extras.GROUP)])
    monkeypatch.setattr(extras, "entry_points", lambda group: found.select(group=group))
    app = typer.Typer()
    app.command("plain")(lambda: typer.echo("plain works"))
    extras.add_commands(app)
    return app


BROKEN = {"absent": "no_such_package.cli:app", "no such name": "relay_eps.cli.extras:app"}


def test_a_command_of_another_package_is_one_of_ours(monkeypatch: pytest.MonkeyPatch):
    app = with_command(monkeypatch, f"{__name__}:elsewhere")
    assert CliRunner().invoke(app, ["other", "greet"]).output == "greetings from elsewhere\n"


@pytest.mark.parametrize("target", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("arguments", [[], ["report", "--lanes", "4"], ["--help"]], ids=" ".join)
def test_a_broken_one_says_in_a_sentence_what_to_install(
    target: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
):
    done = CliRunner().invoke(with_command(monkeypatch, target), ["other", *arguments])
    assert done.exit_code == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: relay-eps other cannot be loaded (")
    assert line.endswith("): pip install 'relay-eps[other]'")


@pytest.mark.parametrize("target", BROKEN.values(), ids=BROKEN)
def test_a_broken_one_takes_no_other_with_it(target: str, monkeypatch: pytest.MonkeyPatch):
    app = with_command(monkeypatch, target)
    assert CliRunner().invoke(app, ["plain"]).output == "plain works\n"
    listed = CliRunner().invoke(app, ["--help"])
    assert listed.exit_code == 0
    assert "relay-eps[other]" in listed.output
