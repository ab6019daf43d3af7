"""What a checkpoint consists of: safetensors files, and a manifest that says what is in each and what its sum is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.checkpoint import record as records
from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.layout import LayerLayout, Section
from relay_eps.errors import CheckpointError

#: Raised by one with every change that an older reader would misunderstand.
VERSION = 1
BUFFERS = "buffers.safetensors"
#: The entry of a file's own metadata that repeats, as JSON, what the manifest says of it.
METADATA = "relay_eps"

_NAME = "relay-eps checkpoint"
#: safetensors' names of the dtypes that files hold. bf16 is carried, and stored, as uint16.
DTYPES = {
    **{np.dtype(code): name for code, name in [("?", "BOOL"), ("<f2", "F16"), ("<f4", "F32"), ("<f8", "F64")]},
    **{np.dtype(f"<i{size}"): f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{np.dtype(f"<u{size}"): f"U{8 * size}" for size in (1, 2, 4, 8)},
}
_ITEMSIZES = {name: dtype.itemsize for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class Checkpoint:
    """What goes with the EPS layers of a step."""

    step: int
    #: Numbers, strings, lists, tuples and dictionaries: optimizer groups, scheduler state, seed, counters, extras.
    record: dict[str, Any]
    #: The model's buffers by name; numeric, boolean and complex dtypes of any shape, bf16 as uint16 bit patterns.
    arrays: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: for a section of an EPS layer's tensor the key is ``<tensor name>/<section>``."""

    key: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _ITEMSIZES[self.dtype]


@dataclass(frozen=True)
class StoredFile:
    """A safetensors file of a checkpoint; ``size`` in bytes and ``sha256`` are known when it has been written."""

    name: str
    metadata: dict[str, str]
    tensors: tuple[StoredTensor, ...]
    size: int = 0
    sha256: str = ""

    @property
    def layer(self) -> str | None:
        """The EPS layer that the file holds; None for the buffers."""
        return self.metadata.get("layer")

    @property
    def applies(self) -> int:
        """t of the EPS layer, and so of each of its tensors."""
        return int(self.metadata["t"])


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``."""

    step: int
    record: dict[str, Any]
    files: tuple[StoredFile, ...]

    def text(self) -> bytes:
        """The manifest as it is written, with a sum of its own; raises CheckpointError for a record beyond JSON."""
        content = {
            "step": self.step,
            "record": records.encode(self.record),
            "files": [asdict(file) for file in self.files],
        }
        outer = {"format": _NAME, "version": VERSION, "sha256": _digest(content), "content": content}
        return (json.dumps(outer, indent=1) + "\n").encode()


def read_manifest(path: Path) -> Manifest:
    """The manifest in the file ``path``; raises CheckpointError for one that is damaged or too new, and OSError."""
    raw = path.read_bytes()
    try:
        return _parse(json.loads(raw), path)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise damaged(path, f"it cannot be understood ({type(error).__name__})") from error


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for a file that is not what was written, with the way out."""
    return CheckpointError(f"{path} is damaged: {why}; restore the checkpoint from a copy, or load another one")


def sections(layout: LayerLayout) -> tuple[Section, ...]:
    """The sections of a layer that a checkpoint keeps."""
    return (Section.P, Section.M, Section.V) if layout.trainable else (Section.P,)


def section_carrier(server: EagerParamServer, section: Section) -> np.dtype[Any]:
    """The dtype of the arrays in which the server gives and takes a section."""
    return next(t.format.carrier for t in server.capabilities.sections if t.section is section)


def _parse(outer: Any, path: Path) -> Manifest:
    if not isinstance(outer, dict) or outer.get("format") != _NAME:
        raise CheckpointError(f"{path} was not written by relay-eps: give a folder that relay-eps saved")
    version = int(outer["version"])
    if version > VERSION:
        raise CheckpointError(
            f"{path} has format version {version} and this relay-eps reads up to {VERSION}: update relay-eps"
        )
    content = outer["content"]
    if _digest(content) != outer["sha256"]:
        raise damaged(path, "its text does not match its checksum")
    return Manifest(content["step"], records.decode(content["record"]), tuple(map(_parse_file, content["files"])))


def _parse_file(fields: dict[str, Any]) -> StoredFile:
    tensors = tuple(StoredTensor(t["key"], t["dtype"], tuple(t["shape"])) for t in fields["tensors"])
    file = StoredFile(fields["name"], fields["metadata"], tensors, fields["size"], fields["sha256"])
    if file.name != Path(file.name).name:
        raise ValueError(f"{file.name} is not in the checkpoint's folder")
    return file


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
