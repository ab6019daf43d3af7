"""A run's folder: ``run.json`` says what the run is, and the checkpoints lie beside it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relay_eps import checkpoint
from relay_eps.data import TextData
from relay_eps.errors import CheckpointError, DataError, RelayEpsError
from relay_eps.training.config import TrainConfig

_SETTINGS = "run.json"
#: Raised by one with every change that an older version would misunderstand.
_VERSION = 1


@dataclass(frozen=True)
class DataRecord:
    """The data that a run was started on, to be recognised."""

    fingerprint: str
    files: int
    size: int

    @classmethod
    def of(cls, data: TextData) -> DataRecord:
        """What `check` compares."""
        return cls(data.fingerprint, data.files, data.size)

    def check(self, data: TextData) -> None:
        """Raise DataError unless ``data`` is what the run was started on."""
        if data.fingerprint != self.fingerprint:
            raise DataError(
                f"{data.source} has changed since the run was started ({self.size} bytes in {self.files} files then, "
                f"{data.size} in {data.files} now): put the text back as it was, or train a new run on it"
            )


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run."""

    path: Path

    @staticmethod
    def refuse_taken(path: Path) -> None:
        """Raise RelayEpsError, with the way out, where ``path`` holds a run already."""
        if checkpoint.newest(path) is not None:
            raise RelayEpsError(
                f"{path} already holds a run: go on with it by `relay-eps resume {path}`, "
                "or choose another folder with --out"
            )
        if (path / _SETTINGS).exists():
            raise RelayEpsError(
                f"{path} holds a run without a checkpoint, which another process may be training: choose another "
                "folder with --out, or remove it if that run is over"
            )

    @classmethod
    def create(cls, path: Path, config: TrainConfig, data: TextData) -> RunFolder:
        """Make the folder for a new run. Raises RelayEpsError where it holds a run, or cannot be made."""
        cls.refuse_taken(path)
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Whoever makes the settings file has the folder: of two runs that start at once, one is refused.
            folder._settings.touch(exist_ok=False)
        except FileExistsError:
            cls.refuse_taken(path)
            raise RelayEpsError(f"the run's folder {path} cannot be made: a file is in its place") from None
        except OSError as error:
            raise RelayEpsError(f"the run's folder {path} cannot be made: {error.strerror}") from error
        folder.record(config, DataRecord.of(data))
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, TrainConfig, DataRecord]:
        """A run that was started before. Raises CheckpointError where there is none, or none with a checkpoint."""
        folder = cls(path)
        settings = folder._read()
        if checkpoint.newest(path) is None:
            folder._refuse_broken_checkpoint()
            raise CheckpointError(
                f"{path} holds a run that ended before its first checkpoint: remove the folder and train it again, "
                "with --save-every to save as it goes"
            )
        try:
            return folder, TrainConfig.from_record(settings["config"]), DataRecord(**settings["data"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(_damaged(folder._settings)) from error

    def record(self, config: TrainConfig, data: DataRecord) -> None:
        """Write what the run is; the file is whole or, after a failure, as it was."""
        settings = {"version": _VERSION, "config": config.to_record(), "data": asdict(data)}
        temporary = self._settings.with_suffix(".writing")
        try:
            with temporary.open("w") as file:
                json.dump(settings, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._settings)
        except OSError as error:
            raise RelayEpsError(f"{self._settings} cannot be written: {error.strerror}") from error

    def _refuse_broken_checkpoint(self) -> None:
        for step in sorted(self.path.glob("step-*")):
            raise CheckpointError(
                f"{step} is not a whole checkpoint: its manifest.json is missing; restore it from a copy"
            )

    @property
    def _settings(self) -> Path:
        return self.path / _SETTINGS

    def _read(self) -> dict[str, Any]:
        try:
            settings = json.loads(self._settings.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(
                f"{self.path} holds no run: name a folder that `relay-eps train` has written (it has a {_SETTINGS})"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{self._settings} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise CheckpointError(_damaged(self._settings)) from error
        if not isinstance(settings, dict) or not isinstance(settings.get("version"), int):
            raise CheckpointError(_damaged(self._settings))
        if settings["version"] > _VERSION:
            raise CheckpointError(
                f"{self._settings} was written by a newer relay-eps: resume the run with that version"
            )
        return settings


def next_run(parent: Path) -> Path:
    """The first of ``parent``/001, 002, ... that does not exist."""
    number = 1
    while (path := parent / f"{number:03}").exists():
        number += 1
    return path


def _damaged(path: Path) -> str:
    return f"{path} is damaged: it is not what relay-eps wrote; restore it from a copy, or train a new run"
