"""Files of a checkpoint are ordinary safetensors files, and every kind of buffer comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import load_file

from relay_eps.checkpoint import Checkpoint, load, save
from relay_eps.eps import Section
from relay_eps.errors import CheckpointError
from tests.host.checkpoint.states import LAYERS, assert_same_array, checkpoint, server, state

DTYPES = [
    *(np.dtype(code) for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")),
    *(np.dtype(code) for code in (">i4", ">f4", ">c8")),
]


def test_the_safetensors_library_reads_every_layer(tmp_path: Path) -> None:
    eps = server(seed=1)
    path = save(tmp_path, eps, checkpoint())
    before = state(eps)
    files = json.loads((path / "manifest.json").read_text())["content"]["files"]
    found = set()
    for entry in files[:-1]:
        tensors = load_file(path / entry["name"])
        with safe_open(path / entry["name"], "np") as file:
            metadata = json.loads(file.metadata()["relay_eps"])
        layer = metadata["layer"]
        assert metadata["t"] == str(eps.applies(layer))
        assert metadata["trainable"] == json.dumps(eps.layout(layer).trainable)
        assert metadata == entry["metadata"]
        for key, values in tensors.items():
            name, _, section = key.rpartition("/")
            np.testing.assert_array_equal(values.reshape(-1).view(np.uint32), before[name][1][Section(section)])
            found.add((name, Section(section)))
    assert found == {(name, section) for name, (_, bits) in before.items() for section in bits}
    assert [entry["metadata"]["layer"] for entry in files[:-1]] == [layout.name for layout in LAYERS]


def test_the_safetensors_library_reads_the_buffers(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "mean": np.arange(6, dtype=np.float32).reshape(2, 3),
        "count": np.array(7, np.int64),
    }
    with server() as eps:
        path = save(tmp_path, eps, Checkpoint(1, {}, arrays))
    read = load_file(path / "buffers.safetensors")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert_same_array(read[name], array)


def arrays_of(dtype: np.dtype) -> st.SearchStrategy[np.ndarray]:
    """Any bit pattern of the dtype, in any small shape, 0-d and empty ones among them."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    octets = st.binary(min_size=64 * 16, max_size=64 * 16)
    return st.builds(lambda shape, raw: _filled(dtype, shape, raw), shapes, octets)


def _filled(dtype: np.dtype, shape: tuple[int, ...], raw: bytes) -> np.ndarray:
    size = int(np.prod(shape))
    bits = np.frombuffer(raw, np.uint8)[: size * dtype.itemsize]
    return (bits & 1 if dtype.kind == "b" else bits).view(dtype).reshape(shape).copy()


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.sampled_from(DTYPES).flatmap(arrays_of),
        max_size=4,
    )
)
def test_buffers_of_any_dtype_and_shape_come_back_bit_for_bit(tmp_path_factory, arrays) -> None:
    folder = tmp_path_factory.mktemp("buffers")
    with server(()) as eps:
        save(folder, eps, Checkpoint(0, {}, arrays))
        loaded = load(folder, eps).arrays
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert_same_array(loaded[name], array.astype(array.dtype.newbyteorder("<")))


def test_a_buffer_that_is_not_contiguous_comes_back(tmp_path: Path) -> None:
    array = np.arange(24.0).reshape(4, 6)[::2, ::3].T
    with server(()) as eps:
        save(tmp_path, eps, Checkpoint(0, {}, {"strided": array}))
        assert_same_array(load(tmp_path, eps).arrays["strided"], np.ascontiguousarray(array))


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", "g", "V2"])
def test_a_buffer_of_another_dtype_is_refused_by_name(tmp_path: Path, dtype: str) -> None:
    with server() as eps, pytest.raises(CheckpointError, match=r"cannot keep buffer 'odd\.one' of dtype"):
        save(tmp_path, eps, Checkpoint(0, {}, {"odd.one": np.empty(2, dtype)}))
    assert contents_of(tmp_path) == []


def contents_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
