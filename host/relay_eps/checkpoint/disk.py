"""File operations that are on the disk when they return, and a lock that lets one process save at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay_eps.checkpoint.names import REMOVING
from relay_eps.errors import CheckpointError

#: Bytes read and hashed at a time.
CHUNK = 1 << 20


def sha256(path: Path) -> str:
    """The SHA-256 sum of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Bring a file's contents, or the names in a folder, to the disk (a file's sync does not bring its name)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems have no fsync for folders; there is nothing better to do on them.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and the folders above it, each on the disk when this returns."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    sync(folder.parent)


def move(source: Path, target: Path) -> None:
    """Give a folder another name in the same folder, in one step that nothing can tear."""
    os.rename(source, target)


def discard(path: Path) -> None:
    """Remove a folder; killed half way, it leaves nothing under the old name. Of a symbolic link the link goes."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    if not path.name.startswith(REMOVING):
        doomed = path.with_name(REMOVING + path.name)
        move(path, doomed)
        path = doomed
    shutil.rmtree(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for saving; raises CheckpointError where another process does. It ends with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"another process is saving into {folder}: wait for it, or give each run a folder of its own"
        ) from None
    except OSError:
        # A file system without locks (some network ones): two runs in one folder would not notice each other.
        pass
