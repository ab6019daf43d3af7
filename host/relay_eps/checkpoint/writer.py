"""Saving a checkpoint so that there is a complete one at every moment."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from relay_eps.checkpoint.disk import discard, locked, make_folder, move, sha256, sync
from relay_eps.checkpoint.format import (
    BUFFERS,
    DTYPES,
    METADATA,
    Checkpoint,
    Manifest,
    StoredFile,
    StoredTensor,
    section_carrier,
    sections,
)
from relay_eps.checkpoint.names import ASIDE, MANIFEST, REMOVING, WRITING, checkpoints, is_complete, step_name
from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.layout import LayerLayout, Section
from relay_eps.errors import CheckpointError


def save(folder: Path, server: EagerParamServer, checkpoint: Checkpoint) -> Path:
    """Save the server's layers and ``checkpoint`` as ``folder/step-00000012``; returns that path.

    The files are written into a folder of another name, synced, and renamed into place; the previous checkpoints are
    removed only after that is on the disk, so for a while the disk holds two. A step that was saved before is moved
    aside (``step-00000012.previous``, which `newest` and `load` know) and removed like any previous one. Extra memory:
    p, m and v of the largest layer.

    Raises CheckpointError, with the previous checkpoint as it was: for a disk that is full or cannot be written, a
    folder in which another process is saving or which holds a later step, a tensor name that two layers use, a record
    or a buffer that cannot be kept. Errors of the server, such as LayerDamaged, pass through.
    """
    folder = Path(folder)
    server.synchronize()
    plan = _plan(server, checkpoint)
    needed = sum(tensor.nbytes for file in plan for tensor in file.tensors)
    try:
        make_folder(folder)
        with locked(folder):
            return _save(folder, server, checkpoint, plan)
    except OSError as error:
        raise CheckpointError(_failure(folder, checkpoint.step, needed, error)) from error


def _save(folder: Path, server: EagerParamServer, checkpoint: Checkpoint, plan: list[StoredFile]) -> Path:
    final = folder / step_name(checkpoint.step)
    _clear_leftovers(folder)
    _refuse_to_hide(final, checkpoint.step)
    temporary = folder / f"{WRITING}{final.name}-{os.getpid()}"
    try:
        _write(temporary, server, checkpoint, plan)
        _put_in_place(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _remove_previous(final, checkpoint.step)
    return final


def _plan(server: EagerParamServer, checkpoint: Checkpoint) -> list[StoredFile]:
    """The files to be written; raises CheckpointError for what could not be loaded again."""
    if checkpoint.step < 0:
        raise CheckpointError(f"a checkpoint's step must not be negative, and is {checkpoint.step}")
    Manifest(checkpoint.step, checkpoint.record, ()).text()
    owners: dict[str, str] = {}
    files = []
    for number, layer in enumerate(server.layers()):
        layout = server.layout(layer)
        for tensor in layout.tensors:
            if tensor.name in owners:
                raise CheckpointError(
                    f"tensor {tensor.name!r} is in layer {owners[tensor.name]!r} and in layer {layer!r}: "
                    "give tensors the names that they have in the whole model"
                )
            owners[tensor.name] = layer
        # Numbered: a layer's name may hold characters that a file name may not, and be of any length.
        files.append(_layer_file(f"layer-{number:05d}.safetensors", server, layout))
    return [*files, _buffer_file(checkpoint.arrays)]


def _layer_file(name: str, server: EagerParamServer, layout: LayerLayout) -> StoredFile:
    metadata = {
        "layer": layout.name,
        "t": str(server.applies(layout.name)),
        "trainable": json.dumps(layout.trainable),
    }
    tensors = tuple(
        StoredTensor(f"{tensor.name}/{section.value}", DTYPES[section_carrier(server, section)], tensor.shape)
        for section in sections(layout)
        for tensor in layout.tensors
    )
    return StoredFile(name, metadata, tensors)


def _buffer_file(arrays: dict[str, NDArray[Any]]) -> StoredFile:
    plain = _buffers(arrays)
    tensors = tuple(StoredTensor(name, DTYPES[array.dtype], array.shape) for name, array in plain.items())
    complexes = [name for name, array in arrays.items() if array.dtype.kind == "c"]
    return StoredFile(BUFFERS, {"complex": json.dumps(complexes)}, tensors)


def _write(folder: Path, server: EagerParamServer, checkpoint: Checkpoint, plan: list[StoredFile]) -> None:
    folder.mkdir()
    written = []
    for file in plan:
        path = folder / file.name
        _write_tensors(path, _buffers(checkpoint.arrays) if file.layer is None else _layer(server, file.layer), file)
        written.append(replace(file, size=path.stat().st_size, sha256=sha256(path)))
        sync(path)
    manifest = folder / MANIFEST
    manifest.write_bytes(Manifest(checkpoint.step, checkpoint.record, tuple(written)).text())
    sync(manifest)
    sync(folder)


def _write_tensors(path: Path, tensors: dict[str, NDArray[Any]], file: StoredFile) -> None:
    """Write a safetensors file straight from the arrays' memory; raises OSError where the disk fails."""
    try:
        # In one entry: the library writes several in an order that changes, and equal states make equal files.
        save_file(tensors, path, {METADATA: json.dumps(file.metadata)})
    except SafetensorError as error:
        # The library tells what the disk said in words only.
        raise OSError(errno.EIO, str(error), str(path)) from error
    # It makes files that nobody else may read; these are as open as the folder, like any file made here.
    with suppress(PermissionError):  # a file system that keeps no modes
        path.chmod(path.parent.stat().st_mode & 0o666)


def _layer(server: EagerParamServer, layer: str) -> dict[str, NDArray[Any]]:
    """A layer's tensors as its file holds them: views of p, m and v, which are read from the server."""
    layout = server.layout(layer)
    tensors = {}
    for section in sections(layout):
        values = server.read(layer, section).result()
        if section is Section.V:
            _drop_signs(values)
        for slot in layout.slots:
            flat = values[slot.start : slot.stop]
            tensors[f"{slot.spec.name}/{section.value}"] = flat.reshape(slot.spec.shape)
    return tensors


def _drop_signs(v: NDArray[Any]) -> None:
    """Clear v's sign bits: only a NaN can have one (any NaN will do), and no server takes it back."""
    bits = v.view(f"u{v.itemsize}")
    bits &= np.iinfo(bits.dtype).max >> 1


def _buffers(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: _plain(name, array) for name, array in arrays.items()}


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """A buffer as its file holds it: contiguous, little-endian, a complex number as a pair of floats."""
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    if plain.dtype.kind == "c":
        plain = plain.reshape(-1).view(f"<f{plain.itemsize // 2}").reshape(*array.shape, 2)
    if plain.dtype not in DTYPES:
        raise CheckpointError(
            f"a checkpoint cannot keep buffer {name!r} of dtype {array.dtype}: "
            "use integers, booleans, floats or complex numbers of 64 bits at most (bf16 as uint16 bit patterns)"
        )
    return plain


def _clear_leftovers(folder: Path) -> None:
    """Remove what killed processes left; the lock says that no living one is at work on it."""
    for path in folder.iterdir():
        if path.name.startswith((WRITING, REMOVING)):
            discard(path)


def _refuse_to_hide(final: Path, step: int) -> None:
    """Refuse to save where a later step is: it is another run's, and would be lost or loaded instead of this one."""
    later = [found.path.name for found in checkpoints(final.parent) if found.step > step]
    if later:
        raise CheckpointError(
            f"{final.parent} holds {later[-1]}, which is later than step {step}: "
            "load it to go on from there, or save into another folder"
        )
    if os.path.lexists(final) and not is_complete(final):
        raise CheckpointError(f"{final} is in the way and is no complete checkpoint: move it elsewhere")


def _put_in_place(temporary: Path, final: Path) -> None:
    if final.exists():
        aside = final.with_name(final.name + ASIDE)
        if os.path.lexists(aside):
            discard(aside)
        move(final, aside)
        try:
            sync(final.parent)
            move(temporary, final)
        except BaseException:
            with suppress(OSError):
                move(aside, final)
            raise
    else:
        move(temporary, final)
    sync(final.parent)


def _remove_previous(final: Path, step: int) -> None:
    for found in checkpoints(final.parent):
        if found.path.name != final.name and found.step <= step:
            try:
                discard(found.path)
            except OSError as error:
                warnings.warn(
                    f"{final} is saved, but the previous {found.path.name} could not be removed: {error.strerror}",
                    RuntimeWarning,
                    stacklevel=4,
                )


def _failure(folder: Path, step: int, needed: int, error: OSError) -> str:
    where = error.filename or folder
    free = ""
    with suppress(OSError):
        free = f", and {shutil.disk_usage(folder).free:,} are free"
    return (
        f"step {step} could not be saved: {where}: {error.strerror or error}. It takes over {needed:,} bytes{free}; "
        "make room or save into another folder (what was saved before is as it was)"
    )
