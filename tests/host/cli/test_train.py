"""``relay-eps train`` and ``resume``: what is printed where, exit codes, and every refusal in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from relay_eps.checkpoint import newest
from relay_eps.cli.app import app
from tests.host.training.small import text_file


def options(**values: object) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


TINY = options(layers=1, width=16, heads=2, context=8, batch=4, micro_batch=2, warmup=0, eval_every=2)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def train(folder: Path, *arguments: str | Path) -> Result:
    """A tiny run of three steps in ``folder``/run."""
    return run("train", text_file(folder), *TINY, "--steps", "3", "--out", folder / "run", *arguments)


def events(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def one_sentence(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


# --- what is printed


def test_a_run_shows_its_progress_and_ends_with_one_line_of_plain_text(tmp_path: Path):
    done = train(tmp_path)
    assert done.exit_code == 0, done.output
    last = done.stdout.splitlines()[-1]
    assert last.startswith("validation loss 5.")
    assert "tokens/s; device peak" in last
    assert last.endswith("bytes/parameter")
    size = text_file(tmp_path).stat().st_size
    for told in (f"{size:,} bytes in 1 files", "EPS", "step 2   validation loss", "saved", "step-00000003"):
        assert told in done.stderr


def test_quiet_prints_the_last_line_only(tmp_path: Path):  # H38
    done = train(tmp_path, "--quiet")
    assert done.stderr == ""
    assert [line.startswith("validation loss") for line in done.stdout.splitlines()] == [True]


def test_json_prints_objects_only_and_ends_with_the_hash(tmp_path: Path):
    done = train(tmp_path, "--json")
    told = events(done)
    assert [e["event"] for e in told] == ["start", "eval", "step", "step", "eval", "step", "eval", "save", "end"]
    assert len(told[-1]["hash"]) == 64
    assert told[0]["run"] == str(tmp_path / "run")


def test_a_comparison_is_in_the_last_line(tmp_path: Path):
    done = train(tmp_path, "--compare", "--quiet", "--steps", "8")
    assert "tokens/s relay" in done.stdout
    assert "plain PyTorch (" in done.stdout


def test_runs_without_a_name_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for number in ("001", "002"):
        done = run("train", text_file(tmp_path), *TINY, "--steps", "1", "--json")
        assert events(done)[0]["run"] == f"runs/{number}"
        assert newest(tmp_path / "runs" / number) is not None


def test_logs_are_written(tmp_path: Path):
    assert train(tmp_path, "--quiet", "--logdir", tmp_path / "logs").exit_code == 0
    assert list((tmp_path / "logs").glob("events.out.tfevents*"))


def test_resume_goes_on_where_the_run_stood(tmp_path: Path):
    train(tmp_path)
    done = run("resume", tmp_path / "run", "--steps", "5", "--json")
    assert done.exit_code == 0, done.output
    assert [e["step"] for e in events(done) if e["event"] == "step"] == [4, 5]


# --- bad input


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--wire", "fp8"), "fp8"),
        (("--mode", "sgd"), "sgd"),
        (("--stash", "disk"), "disk"),
        (("--lr", "much"), "--lr"),
        (("--eps", "fpga"), "it has software"),
        (("--presto",), "--presto"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_what_is_wrong(tmp_path: Path, wrong: tuple[str, ...], told: str):
    done = train(tmp_path, *wrong)
    assert done.exit_code == 2
    assert done.stdout == ""
    # The message is folded into a box.
    assert told in " ".join(done.stderr.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--heads", "3"), "width of 16 cannot be shared among 3 heads"),
        (("--steps", "0"), "steps must be at least 1"),
        (("--lr", "nan"), "lr must be at least 0, not nan"),
        (("--context", "2000"), "too few for a context of 2000"),
        (("--device", "toaster"), "no device 'toaster'"),
        (("--device", "cuda", "--link-gbps", "1"), "leave out --link-gbps"),
        (("--mode", "adama", "--clip", "1"), "AdamA"),
    ],
)
def test_impossible_runs_are_refused_in_one_sentence(tmp_path: Path, wrong: tuple[str, ...], told: str):
    assert told.lower() in one_sentence(train(tmp_path, *wrong)).lower()
    assert not (tmp_path / "run").exists()


def test_text_that_is_missing_or_empty_is_refused(tmp_path: Path):
    (tmp_path / "empty.txt").touch()
    assert "empty.txt is empty" in one_sentence(run("train", tmp_path / "empty.txt"))
    assert "nowhere does not exist" in one_sentence(run("train", tmp_path / "nowhere"))


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path):
    train(tmp_path, "--quiet")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    told = one_sentence(train(tmp_path))
    assert f"relay-eps resume {tmp_path / 'run'}" in told
    assert "--out" in told
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path):
    assert "holds no run" in one_sentence(run("resume", tmp_path))


def test_a_finished_run_says_how_to_train_longer(tmp_path: Path):
    train(tmp_path)
    assert "give more with --steps" in one_sentence(run("resume", tmp_path / "run"))


def test_changed_text_is_not_resumed(tmp_path: Path):
    train(tmp_path)
    (tmp_path / "text.txt").write_text("another text " * 100)
    assert "has changed since" in one_sentence(run("resume", tmp_path / "run", "--steps", "9"))


def test_a_truncated_checkpoint_is_named(tmp_path: Path):
    train(tmp_path)
    victim = max((tmp_path / "run" / "step-00000003").glob("*.safetensors"), key=lambda p: p.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1])
    assert victim.name in one_sentence(run("resume", tmp_path / "run", "--steps", "9"))


def test_a_loss_that_is_not_finite_names_the_checkpoint_that_is_left(tmp_path: Path):
    done = train(tmp_path, "--lr", "1e30", "--save-every", "1", "--quiet")
    assert done.exit_code == 1
    error, kept = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert kept == f"the last checkpoint is sound: {tmp_path / 'run' / 'step-00000001'}"


def test_a_traceback_comes_on_demand_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RELAY_EPS_DEBUG", "1")
    done = run("resume", tmp_path)
    assert "holds no run" in str(done.exception)


def test_too_little_memory_is_one_sentence_and_other_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def fail(message: str) -> Result:
        def failing(*_: object, **__: object) -> None:
            raise RuntimeError(message)

        monkeypatch.setattr("relay_eps.training.run.train", failing)
        return run("train")

    assert "there is not enough memory" in one_sentence(fail("DefaultCPUAllocator: can't allocate memory\nmore"))
    assert str(fail("a bug").exception) == "a bug"


# --- Ctrl-C, in a process of its own


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "relay_eps.cli", "train", str(text_file(folder)), "--out", str(folder / "run")]
    return subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )


def wait_for(process: subprocess.Popen[str], event: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == event:
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(tmp_path: Path):
    process = start(tmp_path, *TINY, "--steps", "1000000", "--json")
    wait_for(process, "step")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    end = json.loads(out.splitlines()[-1])
    assert end["interrupted"]
    assert f"go on with: relay-eps resume {tmp_path / 'run'}" in err
    assert "Traceback" not in err
    resumed = run("resume", tmp_path / "run", "--steps", str(end["step"] + 1), "--json")
    assert resumed.exit_code == 0, resumed.output
    assert events(resumed)[0]["step"] == end["step"]


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path):
    # One step takes many seconds, so that the second signal comes while the first one waits for it.
    big = options(layers=2, width=64, heads=2, context=64, batch=8192, micro_batch=64)
    process = start(tmp_path, *big, "--json")
    wait_for(process, "eval")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "Ctrl-C again" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=5) == 130
    process.communicate()
    assert newest(tmp_path / "run") is None
