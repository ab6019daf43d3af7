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
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.checkpoint.names import REMOVING
from relay_eps.errors import CheckpointError

#: Bytes written, read and hashed at a time: small enough to stay in the processor's cache between the two uses.
CHUNK = 1 << 20


class HashedFile:
    """A new file whose SHA-256 sum is taken as it is written; a context manager that closes it in any case.

    Raises FileExistsError where the file exists, and OSError as the disk has it.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 (closed by __exit__)
        self._digest = hashlib.sha256()

    def write(self, data: bytes | NDArray[Any]) -> None:
        """Append bytes, or the memory of a contiguous array."""
        octets = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
        for start in range(0, octets.size, CHUNK):
            chunk = octets[start : start + CHUNK].data
            self._digest.update(chunk)
            self._file.write(chunk)

    def finish(self) -> str:
        """Bring everything to the disk; returns the SHA-256 sum in hexadecimal."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._digest.hexdigest()

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()


def sync_folder(folder: Path) -> None:
    """Bring the names in ``folder`` to the disk (a file's own fsync does not)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems have no fsync for folders; there is nothing better to do on them.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
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
    sync_folder(folder.parent)


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
