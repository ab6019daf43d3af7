"""Saving a checkpoint so that there is a complete one at every moment."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.checkpoint.disk import HashedFile, discard, locked, make_folder, move, sync_folder
from relay_eps.checkpoint.format import (
    BUFFERS,
    CARRIERS,
    SECTION_DTYPES,
    Checkpoint,
    Manifest,
    StoredFile,
    StoredTensor,
    section_format,
    sections,
)
from relay_eps.checkpoint.names import ASIDE, MANIFEST, REMOVING, WRITING, checkpoints, is_complete, step_name
from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.layout import LayerLayout, Section
from relay_eps.errors import CheckpointError

_DTYPES = {dtype: name for name, dtype in CARRIERS.items() if name != "BF16"}


def save(folder: Path, server: EagerParamServer, checkpoint: Checkpoint) -> Path:
    """Save the server's layers and ``checkpoint`` as ``folder/step-00000012``; returns that path.

    The files are written into a folder of another name, synced, and renamed into place; the previous checkpoints are
    removed only after that is on the disk, so for a while the disk holds two. A step that was saved before is moved
    aside (``step-00000012.previous``, which `newest` and `load` know) and removed like any previous one. Extra memory:
    one section of the largest layer.

    Raises CheckpointError, with the previous checkpoint as it was: for a disk that is full or cannot be written, a
    folder in which another process is saving or which holds a later step, a tensor name that two layers use, a record
    or a buffer that cannot be kept. Errors of the server, such as LayerDamaged, pass through.
    """
    folder = Path(folder)
    server.synchronize()
    plan = _plan(server, checkpoint)
    needed = sum(file.size for file in plan)
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
        StoredTensor(f"{tensor.name}/{section.value}", SECTION_DTYPES[section_format(server, section)], tensor.shape)
        for section in sections(layout)
        for tensor in layout.tensors
    )
    return StoredFile(name, metadata, tensors)


def _buffer_file(arrays: dict[str, NDArray[Any]]) -> StoredFile:
    tensors = tuple(StoredTensor(name, *_stored_as(name, array)) for name, array in arrays.items())
    complexes = [name for name, array in arrays.items() if array.dtype.kind == "c"]
    return StoredFile(BUFFERS, {"complex": json.dumps(complexes)}, tensors)


def _stored_as(name: str, array: NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    """safetensors' dtype and shape of a buffer: a complex number is a pair of floats."""
    dtype, shape = array.dtype.newbyteorder("<"), array.shape
    if dtype.kind == "c":
        dtype, shape = np.dtype(f"<f{dtype.itemsize // 2}"), (*shape, 2)
    if dtype not in _DTYPES:
        raise CheckpointError(
            f"a checkpoint cannot keep buffer {name!r} of dtype {array.dtype}: "
            "use integers, booleans, floats or complex numbers of 64 bits at most (bf16 as uint16 bit patterns)"
        )
    return _DTYPES[dtype], shape


def _write(folder: Path, server: EagerParamServer, checkpoint: Checkpoint, plan: list[StoredFile]) -> None:
    folder.mkdir()
    scratch = np.empty(max((_scratch_bytes(server, layer) for layer in server.layers()), default=0), np.uint8)
    written = []
    for file in plan:
        parts = _buffers(checkpoint.arrays) if file.layer is None else _layer(server, file.layer, scratch)
        with HashedFile(folder / file.name) as out:
            out.write(file.header)
            for part in parts:
                out.write(part)
            written.append(replace(file, sha256=out.finish()))
    with HashedFile(folder / MANIFEST) as out:
        out.write(Manifest(checkpoint.step, checkpoint.record, tuple(written)).text())
        out.finish()
    sync_folder(folder)


def _scratch_bytes(server: EagerParamServer, layer: str) -> int:
    layout = server.layout(layer)
    return max(layout.nbytes(section_format(server, section)) for section in sections(layout))


def _layer(server: EagerParamServer, layer: str, scratch: NDArray[np.uint8]) -> Iterator[NDArray[Any]]:
    """A layer's tensors in the order of its file; each is valid until the next one is asked for."""
    layout = server.layout(layer)
    for section in sections(layout):
        fmt = section_format(server, section)
        values = scratch[: layout.nbytes(fmt)].view(fmt.carrier)
        server.read(layer, section, values).result()
        if section is Section.V:
            _drop_signs(values)
        for slot in layout.slots:
            yield values[slot.start : slot.stop]


def _drop_signs(v: NDArray[Any]) -> None:
    """Clear v's sign bits: only a NaN can have one (any NaN will do), and no server takes it back."""
    bits = v.view(f"u{v.itemsize}")
    bits &= np.iinfo(bits.dtype).max >> 1


def _buffers(arrays: dict[str, NDArray[Any]]) -> Iterator[NDArray[Any]]:
    for array in arrays.values():
        yield np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


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
            sync_folder(final.parent)
            move(temporary, final)
        except BaseException:
            with suppress(OSError):
                move(aside, final)
            raise
    else:
        move(temporary, final)
    sync_folder(final.parent)


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
        f"step {step} could not be saved: {where}: {error.strerror or error}. It takes {needed:,} bytes{free}; "
        "make room or save into another folder (what was saved before is as it was)"
    )
