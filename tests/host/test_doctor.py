"""The doctor: right about this machine, and still at work where packages are missing or broken."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

from relay_eps import doctor

#: Refuses modules by name, as on a machine that does not have them.
WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKING or name in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

LACKING = %r
sys.meta_path.insert(0, Without())
"""


def run_without(lacking: list[str], code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", WITHOUT % (lacking,) + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def here() -> doctor.Diagnosis:
    return doctor.examine()


def fact(diagnosis: doctor.Diagnosis, name: str) -> doctor.Fact:
    return next(f for f in diagnosis.facts if f.name == name)


def ability(diagnosis: doctor.Diagnosis, name: str) -> doctor.Ability:
    return next(a for a in diagnosis.abilities if a.name.startswith(name))


def test_it_is_right_about_this_machine(here: doctor.Diagnosis):
    assert importlib.metadata.version("torch") in fact(here, "torch").detail
    from relay_eps.eps.kernels import default_threads, instruction_sets

    assert fact(here, "EPS kernels").detail.startswith(instruction_sets()[0])
    assert fact(here, "EPS threads").detail.startswith(str(default_threads()))
    assert ability(here, "train on the CPU").works


def test_what_does_not_work_comes_with_a_command(here: doctor.Diagnosis):
    for one in here.abilities:
        assert one.works == (not one.lacks)
        assert one.works or one.install
    assert not any(fact(here, name).found for one in here.abilities for name in one.lacks)


def test_the_text_names_every_fact_and_ability(here: doctor.Diagnosis):
    text = "\n".join(doctor.lines(here))
    for name in [f.name for f in here.facts] + [a.name for a in here.abilities]:
        assert name in text


@pytest.mark.parametrize("lacking", [["torch"], ["numpy", "torch", "typer", "rich", "tensorboard"]])
def test_it_works_without_packages_and_says_what_to_install(lacking: list[str]):
    done = run_without(lacking, "from relay_eps import doctor; sys.exit(doctor.main(['--json']))")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    missing = {f["name"] for f in found["facts"] if not f["found"]}
    assert {n for n in lacking if n in ("numpy", "torch")} <= missing
    training = next(a for a in found["abilities"] if a["name"] == "train on the CPU")
    assert not training["works"]
    assert training["install"] == f"pip install {lacking[0]}"


def test_it_works_without_kernels():
    code = "sys.modules['relay_eps.eps._kernels'] = None\nfrom relay_eps import doctor; print(doctor.main(['--json']))"
    done = run_without(["torch"], code)
    assert done.returncode == 0, done.stderr
    kernels = next(f for f in json.loads(done.stdout.splitlines()[0])["facts"] if f["name"] == "EPS kernels")
    assert not kernels["found"]
    assert "golden model works" in kernels["detail"]


def test_a_broken_package_is_a_fact_and_no_crash(monkeypatch: pytest.MonkeyPatch):
    def broken() -> str:
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setitem(doctor._PROBES, "torch", broken)
    found = doctor.examine()
    assert fact(found, "torch").detail == "broken: OSError: libcudart.so.12: cannot open shared object file"
    assert ability(found, "train on the CPU").lacks == ("torch",)


def test_a_compiler_that_is_asked_for_and_not_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = doctor._probe("C++ compiler", doctor._compiler)
    assert not found.found
    assert "no-such-compiler" in found.detail


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    assert doctor.main(["--all"]) == 2
    assert "--all" in capsys.readouterr().err
