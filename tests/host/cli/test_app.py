"""The command line as a whole: version, help, and what it says where packages are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import relay_eps
from relay_eps.cli import main
from relay_eps.cli.app import app
from tests.host.test_doctor import run_without


def test_the_version_is_the_packages():
    done = CliRunner().invoke(app, ["--version"])
    assert done.output == f"relay-eps {relay_eps.__version__}\n"


def test_help_names_every_command_and_option():
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    for command in ("train", "resume", "doctor"):
        assert command in done.output
    options = (
        "layers width heads context batch micro-batch steps lr warmup weight-decay clip mode stash wire dropout tied "
        "eps link-gbps threads seed out save-every eval-every logdir quiet json compare device"
    )
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "100"}).output
    assert [o for o in options.split() if f"--{o}" not in shown] == []


def test_no_arguments_show_the_help():
    assert "relay-eps resume runs/001" in CliRunner().invoke(app, []).output


@pytest.mark.parametrize("arguments", [[], ["train"], ["resume"]], ids=["all", "train", "resume"])
def test_help_does_not_wait_for_torch(arguments: list[str]):
    code = f"sys.argv = ['relay-eps', *{arguments!r}, '--help']\nfrom relay_eps.cli import main; main()"
    done = run_without(["torch"], code)
    assert done.returncode == 0, done.stderr
    assert "relay-eps" in done.stdout


def test_the_doctor_reports_as_text_and_as_json():
    text = CliRunner().invoke(app, ["doctor"])
    assert text.exit_code == 0
    assert "train on the CPU" in text.output
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    assert {"facts", "abilities"} == set(found)


def test_without_typer_the_doctor_still_works_and_the_rest_says_what_is_missing():
    code = "sys.argv = ['relay-eps', %r]\nfrom relay_eps.cli import main; main()"
    done = run_without(["typer", "torch"], code % "doctor")
    assert done.returncode == 0, done.stderr
    assert "train on the CPU" in done.stdout
    done = run_without(["typer", "torch"], code % "train")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "error: the command line needs typer: pip install typer (only `doctor` works without)"
    )


def test_warnings_are_lines_without_a_place_in_the_code():
    code = (
        "import warnings; from relay_eps.cli.errors import show_warnings_plainly; show_warnings_plainly(); "
        "warnings.warn('mind the gap')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: mind the gap\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=["unset", "count", "policy"],
)
def test_idle_threads_do_not_spin_unless_the_user_wants_them_to(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["relay-eps", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
    # What main has set is not monkeypatch's to undo.
    if not given:
        del os.environ["GOMP_SPINCOUNT"]
