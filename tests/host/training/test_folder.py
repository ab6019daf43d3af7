"""A run's folder: never two runs in one, and clear words for what is no run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relay_eps.checkpoint import Checkpoint, newest, save
from relay_eps.data import TextData
from relay_eps.eps import GoldenEPS
from relay_eps.errors import CheckpointError, DataError, RelayEpsError
from relay_eps.training.config import TrainConfig
from relay_eps.training.folder import DataRecord, RunFolder, next_run

DATA = TextData.of_bytes(np.arange(100, dtype=np.uint8))
CONFIG = TrainConfig(steps=3)


def with_checkpoint(path: Path) -> Path:
    RunFolder.create(path, CONFIG, DATA)
    save(path, GoldenEPS(), Checkpoint(1, {}, {}))
    return path


def test_what_was_recorded_is_read_again(tmp_path: Path):
    folder, config, data = RunFolder.open(with_checkpoint(tmp_path / "deep" / "run"))
    assert folder.path == tmp_path / "deep" / "run"
    assert config == CONFIG
    assert data == DataRecord.of(DATA)
    data.check(DATA)


def test_a_folder_with_a_run_is_not_taken_for_another(tmp_path: Path):
    RunFolder.create(tmp_path, CONFIG, DATA)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(RelayEpsError, match="which another process may be training: choose another folder with --out"):
        RunFolder.create(tmp_path, CONFIG.with_steps(9), DATA)
    save(tmp_path, GoldenEPS(), Checkpoint(1, {}, {}))
    with pytest.raises(RelayEpsError, match=r"already holds a run: go on with it by `relay-eps resume .*--out"):
        RunFolder.create(tmp_path, CONFIG.with_steps(9), DATA)
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(RelayEpsError, match="file/run cannot be made"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG, DATA)


def test_of_two_runs_that_start_at_once_one_gets_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    look = RunFolder.refuse_taken
    # Both have looked, and found the folder free, before either makes it.
    monkeypatch.setattr(RunFolder, "refuse_taken", staticmethod(lambda path: None))
    RunFolder.create(tmp_path, CONFIG, DATA)
    before = (tmp_path / "run.json").read_bytes()
    looks = iter([lambda path: None, look])
    monkeypatch.setattr(RunFolder, "refuse_taken", staticmethod(lambda path: next(looks)(path)))
    with pytest.raises(RelayEpsError, match="another process may be training"):
        RunFolder.create(tmp_path, CONFIG.with_steps(9), DATA)
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_checkpoint_that_lost_its_manifest_is_named(tmp_path: Path):
    (newest(with_checkpoint(tmp_path)) / "manifest.json").unlink()  # type: ignore[operator]
    with pytest.raises(
        CheckpointError, match=r"step-00000001 is not a whole checkpoint: its manifest\.json is missing"
    ):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "empty", "empty/../file"])
def test_what_holds_no_run_cannot_be_opened(tmp_path: Path, name: str):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="holds no run: name a folder that `relay-eps train` has written"):
        RunFolder.open(tmp_path / name)


def test_a_run_without_a_checkpoint_cannot_be_opened(tmp_path: Path):
    RunFolder.create(tmp_path, CONFIG, DATA)
    with pytest.raises(CheckpointError, match="ended before its first checkpoint"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize(
    "contents",
    ["", "{", "[]", "{}", '{"version": 1}', '{"version": 1, "config": 3, "data": {}}', "\0"],
)
def test_damaged_settings_are_named(tmp_path: Path, contents: str):
    with_checkpoint(tmp_path)
    (tmp_path / "run.json").write_text(contents)
    with pytest.raises(CheckpointError, match=r"run\.json is damaged"):
        RunFolder.open(tmp_path)


def test_settings_of_a_newer_version_are_refused(tmp_path: Path):
    with_checkpoint(tmp_path)
    settings = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**settings, "version": 2}))
    with pytest.raises(CheckpointError, match="newer relay-eps"):
        RunFolder.open(tmp_path)


def test_changed_data_is_refused():
    with pytest.raises(DataError, match=r"memory has changed .* \(100 bytes in 1 files then, 99 in 1 now\)"):
        DataRecord.of(DATA).check(TextData.of_bytes(np.arange(99, dtype=np.uint8)))


def test_runs_are_numbered_from_one(tmp_path: Path):
    assert next_run(tmp_path / "runs") == tmp_path / "runs" / "001"
    for name in ("001", "002", "004"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert next_run(tmp_path / "runs") == tmp_path / "runs" / "003"
