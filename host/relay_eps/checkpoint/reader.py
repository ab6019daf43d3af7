"""Loading a checkpoint: everything is verified before the first byte of the server's state is changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from relay_eps.checkpoint.disk import sha256
from relay_eps.checkpoint.format import (
    DTYPES,
    Checkpoint,
    Manifest,
    StoredFile,
    StoredTensor,
    damaged,
    read_manifest,
    section_carrier,
    sections,
)
from relay_eps.checkpoint.names import MANIFEST, is_complete, is_step, newest
from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.layout import LayerLayout, Section
from relay_eps.eps.memory import Returning, aligned_empty
from relay_eps.errors import CheckpointError, RelayEpsError

#: Names that a message lists before it says how many more there are.
_LISTED = 3


@dataclass(frozen=True)
class _Place:
    """Where a tensor's section lies."""

    file: StoredFile
    tensor: StoredTensor


def inspect(folder: Path) -> Checkpoint:
    """What goes with the layers of a checkpoint, or of the newest one in a folder of checkpoints.

    For whoever needs it before there is a server to load into. Manifest and buffers are verified, the layers are not
    looked at. Raises CheckpointError where there is no checkpoint, where one of the two is damaged, and for a newer
    format.
    """
    path = _find(Path(folder))
    try:
        return _read_companions(path, read_manifest(path / MANIFEST))
    except OSError as error:
        raise _unreadable(path, error) from error


def load(folder: Path, server: EagerParamServer, accept: Callable[[Checkpoint], None] | None = None) -> Checkpoint:
    """Load a checkpoint, or the newest one in a folder of checkpoints, into the server; returns what came with it.

    Tensors are found by name, whatever layers they were saved in. Damaged layers and torn steps are repaired, since
    every section is rewritten. Extra memory: two sections of the largest layer, and the buffers. ``accept`` is called
    with what was loaded when all is verified and nothing is changed yet; it may raise to refuse it.

    Raises CheckpointError: where there is no checkpoint; where a file is missing, truncated, altered or of a newer
    format; where tensors, shapes or frozen parts differ from the server's; where tensors of one layer were applied
    different numbers of times. Until then the server is as it was. If afterwards a write fails, the error says that
    the state is mixed.
    """
    path = _find(Path(folder))
    try:
        manifest = read_manifest(path / MANIFEST)
        places = _places(path, manifest)
        _match(path, places, server)
        applies = {layer: _applies(path, manifest, places, server.layout(layer)) for layer in server.layers()}
        returning = Returning()
        for file in manifest.files:
            if file.layer is not None:
                _verify(path, file)
                returning.freed(file.size)
        checkpoint = _read_companions(path, manifest)
    except OSError as error:
        raise _unreadable(path, error) from error
    if accept is not None:
        accept(checkpoint)
    for layer, t in applies.items():
        try:
            _restore(path, server, layer, t, places, returning)
        except (OSError, RelayEpsError) as error:
            raise CheckpointError(
                f"loading {path} stopped in layer {layer!r}, and the model now mixes two states: "
                f"load a checkpoint before going on ({error})"
            ) from error
    return checkpoint


def _find(folder: Path) -> Path:
    try:
        if is_complete(folder):
            return folder
        found = newest(folder)
        if found is not None:
            return found
        raise CheckpointError(_why_none(folder))
    except OSError as error:
        raise CheckpointError(f"cannot look into {folder}: {error.strerror}") from error


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"cannot read {error.filename or path}: {error.strerror or error}")


def _why_none(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist: give a checkpoint, or a folder of checkpoints"
    if not folder.is_dir():
        return f"{folder} is not a folder: give a checkpoint, or a folder of checkpoints"
    broken = [folder] if is_step(folder) else sorted(filter(is_step, folder.iterdir()))
    if broken:
        return f"{broken[-1]} is incomplete: it has no {MANIFEST}; restore it from a copy, or load another checkpoint"
    return f"{folder} is not a checkpoint and holds none: give a folder that relay-eps saved"


def _places(path: Path, manifest: Manifest) -> dict[tuple[str, Section], _Place]:
    """Every section of every tensor in the checkpoint, by tensor name and section."""
    places = {}
    for file in manifest.files:
        if file.layer is None:
            continue
        for tensor in file.tensors:
            name, _, section = tensor.key.rpartition("/")
            places[name, Section(section)] = _Place(file, tensor)
    return places


def _match(path: Path, places: dict[tuple[str, Section], _Place], server: EagerParamServer) -> None:
    """Raise CheckpointError unless the checkpoint has the server's tensors, shapes, sections and formats."""
    layouts = [server.layout(layer) for layer in server.layers()]
    wanted = {t.name: (t, layout) for layout in layouts for t in layout.tensors}
    stored = {name for name, _ in places}
    problems = [
        _listed("the checkpoint lacks", (n for n in wanted if n not in stored)),
        _listed("the model lacks", (n for n in sorted(stored) if n not in wanted)),
    ]
    shapes: list[str] = []
    frozen: list[str] = []
    trained: list[str] = []
    formats: list[str] = []
    for name, (spec, layout) in wanted.items():
        if name not in stored:
            continue
        shape = places[name, Section.P].tensor.shape
        if shape != spec.shape:
            shapes.append(f"{name} (saved as {shape}, here {spec.shape})")
        has_moments = (name, Section.M) in places
        if has_moments != layout.trainable:
            (trained if has_moments else frozen).append(name)
        formats += [
            f"{name}/{section.value}"
            for section in sections(layout)
            if (name, section) in places
            and places[name, section].tensor.dtype != DTYPES[section_carrier(server, section)]
        ]
    problems += [
        _listed("other shapes:", shapes),
        _listed("frozen when saved and trainable here (freeze them, load, then unfreeze):", frozen),
        _listed("trained when saved and frozen here (load first, then freeze them):", trained),
        _listed("stored in another number format:", formats),
    ]
    found = "; ".join(filter(None, problems))
    if found:
        raise CheckpointError(f"{path} belongs to another model: {found}")


def _listed(what: str, names: Iterable[str]) -> str:
    some = list(names)
    more = f" and {len(some) - _LISTED} more" if len(some) > _LISTED else ""
    return f"{what} {', '.join(some[:_LISTED])}{more}" if some else ""


def _applies(path: Path, manifest: Manifest, places: dict[tuple[str, Section], _Place], layout: LayerLayout) -> int:
    """t of a layer, from the files that its tensors come from (for a layer without any, from the layer's own file)."""
    counts = {t.name: places[t.name, Section.P].file.applies for t in layout.tensors}
    if not counts:
        return next((file.applies for file in manifest.files if file.layer == layout.name), 0)
    by_count = {t: name for name, t in counts.items()}
    if len(by_count) > 1:
        (t1, name1), (t2, name2), *_ = by_count.items()
        raise CheckpointError(
            f"{path}: layer {layout.name!r} would join {name1}, applied {t1} times, and {name2}, applied {t2} times: "
            "keep such tensors in different layers, as they were saved"
        )
    return next(iter(by_count))


def _verify(path: Path, file: StoredFile) -> None:
    """Raise CheckpointError unless the file is there, whole and unaltered, and its v can be written to a server."""
    where = path / file.name
    try:
        size = where.stat().st_size
    except FileNotFoundError:
        raise CheckpointError(f"{where} is missing; restore the checkpoint from a copy, or load another one") from None
    if size != file.size:
        raise damaged(where, f"it has {size:,} bytes instead of {file.size:,}")
    if sha256(where) != file.sha256:
        raise damaged(where, "its contents do not match its checksum")
    with _opened(where) as stored:
        for tensor in file.tensors:
            found = stored.get_slice(tensor.key)
            if (found.get_dtype(), tuple(found.get_shape())) != (tensor.dtype, tensor.shape):
                raise damaged(where, f"its {tensor.key} is not what the manifest says")
            if file.layer is not None and tensor.key.endswith("/v") and _any_sign(stored.get_tensor(tensor.key)):
                raise damaged(where, f"{tensor.key} has negative elements")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file to read from; raises CheckpointError naming it for what is not in it, and OSError."""
    try:
        # Read, not mapped: a disk that fails then is an error and not the end of the process.
        with safe_open(path, framework="numpy", backend="pread") as stored:
            yield stored
    except SafetensorError as error:
        raise damaged(path, str(error)) from error


def _any_sign(values: NDArray[Any]) -> bool:
    return bool(values.view(f"i{values.itemsize}").min(initial=0) < 0)


def _read_companions(path: Path, manifest: Manifest) -> Checkpoint:
    arrays: dict[str, NDArray[Any]] = {}
    for file in manifest.files:
        if file.layer is None:
            _verify(path, file)
            arrays.update(_read_buffers(path, file))
    return Checkpoint(manifest.step, manifest.record, arrays)


def _read_buffers(path: Path, file: StoredFile) -> Iterator[tuple[str, NDArray[Any]]]:
    complexes = set(json.loads(file.metadata["complex"]))
    with _opened(path / file.name) as stored:
        for tensor in file.tensors:
            array = stored.get_tensor(tensor.key)
            if tensor.key in complexes:
                array = array.view(f"<c{2 * array.itemsize}").reshape(tensor.shape[:-1])
            yield tensor.key, array


def _restore(
    path: Path,
    server: EagerParamServer,
    layer: str,
    t: int,
    places: dict[tuple[str, Section], _Place],
    returning: Returning,
) -> None:
    layout = server.layout(layer)
    for section in sections(layout):
        carrier = section_carrier(server, section)
        # Pages of its own, zero as they come, that go straight back: the C library may keep what it is given back.
        values = aligned_empty(layout.size * carrier.itemsize).view(carrier)
        placed = [(slot, places[slot.spec.name, section]) for slot in layout.slots]
        # Opened once for neighbours that were saved as neighbours.
        for name, group in groupby(placed, lambda each: each[1].file.name):
            with _opened(path / name) as stored:
                for slot, place in group:
                    values[slot.start : slot.stop] = stored.get_tensor(place.tensor.key).reshape(-1)
        server.write(layer, section, values).result()
        returning.freed(values.nbytes)
    server.set_applies(layer, t)
