"""Text as bytes: what the command line trains on. numpy only.

Files are read in a fixed order and joined into one array of bytes, whose last tenth is kept for validation. A batch is
a function of (seed, step) alone, so that a resumed run needs to remember nothing but the step it is at.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relay_eps.errors import DataError

#: The share of the bytes, at the end, that is kept for validation.
VALIDATION_SHARE = 0.1
#: Folders that are never entered: installed packages, caches. Hidden folders are not entered either.
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules"})
#: Skipped besides in the Python library, where they are most of the bytes.
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})

Bytes = NDArray[np.uint8]
Tokens = NDArray[np.int64]
#: Inputs and targets, each int64 of shape (batch, context); a target is the byte after its input.
Batch = tuple[Tokens, Tokens]


@dataclass(frozen=True)
class TextData:
    """Bytes to train on and to validate on, and the fingerprint that a resumed run is checked against."""

    train: Bytes
    validation: Bytes
    #: sha256, in hex, of all the bytes in order.
    fingerprint: str
    files: int
    #: What was read, for messages.
    source: str

    @classmethod
    def load(cls, paths: Sequence[str | Path] = ()) -> TextData:
        """Read files, and folders recursively; with no paths, the source of this machine's Python library.

        In folders every file that is UTF-8 text is taken, in the order of its path, and others are passed over; a file
        that is named itself must be text. Raises DataError for a path that is missing or cannot be read, for a named
        file that is empty or not text, and where no text is found.
        """
        named = [Path(p) for p in paths]
        source = ", ".join(str(p) for p in named)
        skipped = SKIPPED_FOLDERS
        if not named:
            named, source = [Path(sysconfig.get_path("stdlib"))], "the Python library's source"
            skipped |= TEST_FOLDERS
        texts = [text for path in named for text in _read(path, skipped)]
        if not texts:
            raise DataError(f"{source} holds no text: name files or folders with UTF-8 text in them")
        joined = np.frombuffer(b"".join(texts), dtype=np.uint8)
        return cls.of_bytes(joined, source=source, files=len(texts))

    @classmethod
    def of_bytes(cls, joined: Bytes, *, source: str = "memory", files: int = 1) -> TextData:
        """Split an array of bytes; the last tenth is for validation."""
        cut = len(joined) - int(len(joined) * VALIDATION_SHARE)
        return cls(
            train=joined[:cut],
            validation=joined[cut:],
            fingerprint=hashlib.sha256(joined.data).hexdigest(),
            files=files,
            source=source,
        )

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.train) + len(self.validation)

    def check(self, context: int) -> None:
        """Raise DataError unless training and validation bytes are enough for one sequence of ``context``."""
        shortest = min(len(self.train), len(self.validation))
        if shortest < context + 1:
            needed = int((context + 1) / VALIDATION_SHARE) + 10
            raise DataError(
                f"{self.source}: {self.size} bytes of text are too few for a context of {context} "
                f"(a tenth is kept for validation): give at least {needed} bytes, or a shorter context"
            )

    def batch(self, *, seed: int, step: int, batch: int, context: int) -> Batch:
        """The training batch of ``step``: ``batch`` sequences from random places, a function of (seed, step)."""
        # Raw Philox words, because numpy keeps that stream the same from version to version, and no other.
        stream = np.random.Philox(key=[seed, 0], counter=[0, step, 0, 0])
        places = len(self.train) - context
        return _windows(self.train, stream.random_raw(batch) % np.uint64(places), context)

    def validation_batch(self, *, sequences: int, context: int) -> Batch:
        """Up to ``sequences`` sequences spread evenly over the validation bytes; always the same ones."""
        places = len(self.validation) - context
        starts = np.linspace(0, places - 1, num=min(sequences, places)).astype(np.uint64)
        return _windows(self.validation, np.unique(starts), context)


def _windows(text: Bytes, starts: NDArray[np.uint64], context: int) -> Batch:
    index = starts.astype(np.int64)[:, None] + np.arange(context + 1)
    window = text[index].astype(np.int64)
    return np.ascontiguousarray(window[:, :-1]), np.ascontiguousarray(window[:, 1:])


def _read(path: Path, skipped: frozenset[str]) -> Iterator[bytes]:
    """The texts of one named path."""
    if path.is_dir():
        for file in _walk(path, skipped):
            text = _contents(file)
            if text and _is_text(text):
                yield text
        return
    if not path.exists():
        raise DataError(f"{path} does not exist: name a text file, or a folder of them")
    text = _contents(path)
    if not text:
        raise DataError(f"{path} is empty: there is nothing to train on")
    if not _is_text(text):
        raise DataError(f"{path} is not UTF-8 text: name text files, or convert it")
    yield text


def _walk(folder: Path, skipped: frozenset[str]) -> Iterable[Path]:
    """Files below ``folder`` in the order of their names, the same on every file system."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in skipped and not f.startswith("."))
        yield from (Path(parent, f) for f in sorted(files))


def _contents(file: Path) -> bytes:
    try:
        # A pipe or a device in a folder would never end.
        return file.read_bytes() if file.is_file() else b""
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def _is_text(contents: bytes) -> bool:
    if b"\0" in contents:
        return False
    try:
        contents.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
