"""What a checkpoint consists of: safetensors files, and a manifest that describes every byte of them.

The files follow the safetensors layout (8 bytes of header length, a JSON header, the tensors without holes) and any
safetensors library reads them. They are written and read here by hand, because that streams a section at a time, hashes
in the same pass, and meets a full disk as an OSError.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.checkpoint import record as records
from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.formats import Format
from relay_eps.eps.layout import LayerLayout, Section
from relay_eps.errors import CheckpointError

#: Raised by one with every change that an older reader would misunderstand.
VERSION = 1
BUFFERS = "buffers.safetensors"

_NAME = "relay-eps checkpoint"
#: safetensors' names of the formats that sections are stored in.
SECTION_DTYPES = {Format.FP32: "F32", Format.BF16: "BF16", Format.FP16: "F16"}
#: safetensors' names of numpy's dtypes, little-endian as in the files. BF16 is carried by uint16.
CARRIERS = {
    **{name: np.dtype(code) for name, code in [("BOOL", "?"), ("F16", "<f2"), ("F32", "<f4"), ("F64", "<f8")]},
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    "BF16": np.dtype("<u2"),
}


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
        return prod(self.shape) * CARRIERS[self.dtype].itemsize


@dataclass(frozen=True)
class StoredFile:
    """A safetensors file of a checkpoint; ``sha256`` is empty until it has been written."""

    name: str
    metadata: dict[str, str]
    tensors: tuple[StoredTensor, ...]
    sha256: str = ""

    @cached_property
    def header(self) -> bytes:
        """The bytes before the tensors' data."""
        fields: dict[str, Any] = {"__metadata__": self.metadata}
        stop = 0
        for tensor in self.tensors:
            start, stop = stop, stop + tensor.nbytes
            fields[tensor.key] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, stop]}
        text = _compact(fields).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def places(self) -> Iterator[tuple[StoredTensor, int]]:
        """The tensors, each with the byte of the file where its data start."""
        start = len(self.header)
        for tensor in self.tensors:
            yield tensor, start
            start += tensor.nbytes

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + sum(t.nbytes for t in self.tensors)

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
            "files": [{**asdict(file), "size": file.size} for file in self.files],
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


def section_format(server: EagerParamServer, section: Section) -> Format:
    """The format that the server stores a section in."""
    return next(t.format for t in server.capabilities.sections if t.section is section)


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
    file = StoredFile(fields["name"], fields["metadata"], tensors, fields["sha256"])
    if file.size != fields["size"] or file.name != Path(file.name).name:
        raise ValueError(f"the entry of {file.name} contradicts itself")
    return file


def _digest(content: Any) -> str:
    return hashlib.sha256(_compact(content).encode()).hexdigest()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
