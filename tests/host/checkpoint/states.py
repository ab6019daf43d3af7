"""Servers with known contents, and comparisons of them bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.checkpoint import Checkpoint
from relay_eps.eps import EagerParamServer, GoldenEPS, LayerLayout, Section, TensorSpec

#: tensor name -> (t, section -> bits), what a checkpoint promises to bring back.
State = dict[str, tuple[int, dict[Section, NDArray[np.uint32]]]]

LAYERS = (
    LayerLayout("body.0", (TensorSpec("body.0.weight", (5, 7)), TensorSpec("body.0.bias", (7,)))),
    LayerLayout("body.0/frozen", (TensorSpec("body.0.embedding", (3, 4)),), trainable=False),
    LayerLayout("../Größe: 層 \N{GREEK SMALL LETTER ALPHA}", (TensorSpec("größe/層", (2, 3, 2)),)),
    LayerLayout("scalars", (TensorSpec("gain", ()), TensorSpec("none", (0, 3)), TensorSpec("shift", (1,)))),
    LayerLayout("empty", ()),
)


def server(layouts: Sequence[LayerLayout] = LAYERS, *, seed: int | None = None) -> GoldenEPS:
    """A golden server with the layers; with a seed, each has random bits (NaN among them) and a t of its own."""
    made = GoldenEPS()
    rng = np.random.default_rng(seed)
    for number, layout in enumerate(layouts):
        made.create(layout)
        if seed is None:
            continue
        for section in kept(layout):
            bits = rng.integers(0, 2**32, layout.size, np.uint32)
            if section is Section.V:
                bits &= np.uint32(0x7FFFFFFF)
            made.write(layout.name, section, bits.view(np.float32)).result()
        if layout.trainable:
            made.set_applies(layout.name, 3 * number + 1)
    return made


def kept(layout: LayerLayout) -> tuple[Section, ...]:
    return (Section.P, Section.M, Section.V) if layout.trainable else (Section.P,)


def state(eps: EagerParamServer) -> State:
    """Every tensor's bits and t, by tensor name; a layer without tensors counts under its own name."""
    found: State = {}
    for layer in eps.layers():
        layout = eps.layout(layer)
        flat = {section: eps.read(layer, section).result().view(np.uint32) for section in kept(layout)}
        t = eps.applies(layer)
        for slot in layout.slots:
            found[slot.spec.name] = (t, {s: bits[slot.start : slot.stop] for s, bits in flat.items()})
        if not layout.tensors:
            found[layer] = (t, {})
    return found


def assert_same_state(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name, (t, bits) in one.items():
        assert other[name][0] == t, f"t of {name}"
        assert other[name][1].keys() == bits.keys(), f"sections of {name}"
        for section, values in bits.items():
            np.testing.assert_array_equal(other[name][1][section], values, f"{name}/{section.value}")


def assert_same_array(one: NDArray[Any], other: NDArray[Any]) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes()


def checkpoint(step: int = 12, **record: Any) -> Checkpoint:
    return Checkpoint(step, record, {})


def contents(folder: Path) -> dict[str, str]:
    """Everything below a folder: the sum of each file, by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
