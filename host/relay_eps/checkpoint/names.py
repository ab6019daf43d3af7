"""The names of checkpoints inside their folder, and which of them is the newest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from relay_eps.errors import CheckpointError

MANIFEST = "manifest.json"
#: Folders being written and being removed; whatever their holder did not finish goes at the next save.
WRITING = ".writing-"
REMOVING = ".removing-"
#: A step that is saved again is moved aside under this ending, since no rename can replace a folder.
ASIDE = ".previous"

_STEP = re.compile(rf"step-(\d{{8,}})({re.escape(ASIDE)})?")


@dataclass(frozen=True, order=True)
class Named:
    """A complete checkpoint in a folder of checkpoints; they compare by age, the newest being the largest."""

    step: int
    #: False for one that was moved aside while its step was saved again.
    current: bool
    path: Path


def step_name(step: int) -> str:
    """The folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def is_complete(path: Path) -> bool:
    """Whether ``path`` is a checkpoint folder with its manifest, which is all that a rename can leave behind."""
    return (path / MANIFEST).is_file()


def is_step(path: Path) -> bool:
    """Whether ``path`` has a checkpoint's name."""
    return _STEP.fullmatch(path.name) is not None


def checkpoints(folder: Path) -> list[Named]:
    """The complete checkpoints in ``folder``, oldest first; none where the folder does not exist."""
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        match = _STEP.fullmatch(path.name)
        if match and is_complete(path):
            found.append(Named(int(match[1]), match[2] is None, path))
    return sorted(found)


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint in ``folder``, or None. Raises CheckpointError where it cannot be looked into."""
    try:
        found = checkpoints(Path(folder))
    except OSError as error:
        raise CheckpointError(f"cannot look for checkpoints in {folder}: {error.strerror}") from error
    return found[-1].path if found else None
