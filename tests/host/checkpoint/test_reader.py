"""Loading: whatever is wrong with a checkpoint is named in one sentence, and the server stays as it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_eps.checkpoint import Checkpoint, inspect, load, newest, save, writer
from relay_eps.eps import AdamHyper, GoldenEPS, HostEPS, LayerLayout, Section, TensorSpec
from relay_eps.eps.arithmetic import GoldenArithmetic
from relay_eps.errors import CheckpointError
from tests.host.checkpoint.states import LAYERS, assert_same_array, assert_same_state, checkpoint, server, state

A, B, C = (TensorSpec(name, shape) for name, shape in [("a", (3,)), ("b", (2, 2)), ("c", ())])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with server(seed=1) as eps:
        buffers = {"mean": np.arange(5.0), "count": np.array(3)}
        return save(tmp_path_factory.mktemp("saved"), eps, Checkpoint(12, {"seed": 5}, buffers))


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / saved.name))


def assert_refused(folder: Path, match: str, layouts: Sequence[LayerLayout] = LAYERS) -> None:
    """The load raises a CheckpointError of one sentence, and the server has the bits that it had."""
    with server(layouts, seed=2) as eps:
        before = state(eps)
        with pytest.raises(CheckpointError, match=match) as caught:
            load(folder, eps)
        assert_same_state(state(eps), before)
    assert "\n" not in str(caught.value)


# --- finding it


def test_a_checkpoint_and_a_folder_of_checkpoints_can_both_be_given(copy: Path) -> None:
    with server() as eps:
        assert load(copy, eps).step == load(copy.parent, eps).step == 12
    assert newest(copy.parent) == copy


def test_inspect_tells_what_goes_with_the_layers_without_a_server(copy: Path) -> None:
    (copy / "layer-00000.safetensors").unlink()
    for folder in (copy, copy.parent):
        found = inspect(folder)
        assert (found.step, found.record) == (12, {"seed": 5})
        assert_same_array(found.arrays["mean"], np.arange(5.0))
        assert_same_array(found.arrays["count"], np.array(3))
    (copy / "buffers.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"buffers\.safetensors is damaged"):
        inspect(copy)
    with pytest.raises(CheckpointError, match="does not exist"):
        inspect(copy / "nowhere")


def test_the_newest_is_the_highest_complete_step(tmp_path: Path) -> None:
    with server() as eps:
        for step in (99_999_999, 100_000_000, 123):
            save(tmp_path / str(step), eps, checkpoint(step)).rename(tmp_path / f"step-{step:08d}")
    (tmp_path / "step-200000000").mkdir()
    (tmp_path / "step-300000000").write_text("")
    assert newest(tmp_path) == tmp_path / "step-100000000"


def test_where_there_is_none_the_error_says_what_is_there(tmp_path: Path, copy: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    assert_refused(tmp_path / "nowhere", "nowhere does not exist")
    assert_refused(tmp_path / "file", "file is not a folder")
    assert_refused(tmp_path / "empty", "is not a checkpoint and holds none")
    assert newest(tmp_path / "nowhere") is None
    assert newest(tmp_path / "file") is None
    (copy / "manifest.json").unlink()
    for folder in (copy, copy.parent):
        assert_refused(folder, r"step-00000012 is incomplete: it has no manifest\.json")


# --- a damaged one


def files_of(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_a_missing_file_is_named(saved: Path, tmp_path: Path) -> None:
    for name in files_of(saved):
        if name != "manifest.json":
            path = Path(shutil.copytree(saved, tmp_path / name))
            (path / name).unlink()
            assert_refused(path, f"{name} is missing; restore the checkpoint from a copy, or load another")


def test_a_truncated_or_longer_file_is_named(saved: Path, tmp_path: Path) -> None:
    for name in files_of(saved):
        whole = (saved / name).read_bytes()
        path = Path(shutil.copytree(saved, tmp_path / name))
        for length in (0, 7, len(whole) // 2, len(whole) - 1):
            (path / name).write_bytes(whole[:length])
            if name == "manifest.json" and length == len(whole) - 1:
                continue  # the last byte is a line end that says nothing
            assert_refused(path, f"{name} is damaged")
        (path / name).write_bytes(whole + b"}")
        assert_refused(path, f"{name} is damaged")


@given(st.data())
def test_a_flipped_bit_anywhere_is_found(saved: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(files_of(saved)))
    whole = bytearray((saved / name).read_bytes())
    place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    whole[place] ^= 1 << bit
    if name == "manifest.json" and same_json(bytes(whole), (saved / name).read_bytes()):
        return  # white space
    path = Path(shutil.copytree(saved, tmp_path_factory.mktemp("flipped") / "checkpoint"))
    (path / name).write_bytes(whole)
    # In the manifest the words of its format and version may be hit, which reads as another program's or time's.
    assert_refused(path, f"{name} (is damaged|was not written by relay-eps|has format version)")


def same_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "[" * 100_000, '{"name": "app"}', "\ud800"])
def test_a_manifest_of_something_else_is_refused(copy: Path, text: str) -> None:
    (copy / "manifest.json").write_bytes(text.encode(errors="surrogatepass"))
    assert_refused(copy, r"manifest\.json (is damaged|was not written by relay-eps)")


def test_a_newer_format_asks_for_an_update(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["version"] += 1
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert_refused(copy, "has format version 2 and this relay-eps reads up to 1: update relay-eps")


def test_a_v_that_no_server_takes_is_found_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = LayerLayout("first", (A,)), LayerLayout("second", (B,))
    monkeypatch.setattr(writer, "_drop_signs", lambda v: v.__setitem__(slice(3, 4), -1.0))
    with server((first, second), seed=1) as eps:
        save(tmp_path, eps, checkpoint())
    assert_refused(tmp_path, r"layer-00001\.safetensors is damaged: b/v has negative elements", (first, second))


@pytest.mark.parametrize("other", [{"x/p": (2,), "x/m": (2,)}, {"x/p": (2,), "x/m": (2,), "x/v": (1,)}, {}])
def test_a_file_that_is_not_what_the_manifest_says_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, tuple[int, ...]]
) -> None:
    layout = LayerLayout("x", (TensorSpec("x", (2,)),))
    monkeypatch.setattr(writer, "_layer", lambda *_: {key: np.ones(shape, "f4") for key, shape in other.items()})
    with server((layout,)) as eps:
        save(tmp_path, eps, checkpoint())
    assert_refused(tmp_path, r"layer-00000\.safetensors is damaged: ", (layout,))


# --- another model's


def test_missing_extra_and_reshaped_tensors_are_each_named(tmp_path: Path) -> None:
    many = tuple(TensorSpec(f"head.{i}", (1,)) for i in range(10))
    with server((LayerLayout("x", (A, B, C)),)) as eps:
        save(tmp_path / "three", eps, checkpoint())
    with server((LayerLayout("x", many),)) as eps:
        save(tmp_path / "many", eps, checkpoint())

    model = (LayerLayout("x", (A, B)),)
    assert_refused(tmp_path / "three", "belongs to another model: the model lacks c$", model)
    model = (LayerLayout("x", (A, TensorSpec("b", (4,)), C, *many)),)
    assert_refused(
        tmp_path / "three", r"the checkpoint lacks head\.0, head\.1, head\.2 and 7 more; other shapes", model
    )
    assert_refused(tmp_path / "three", r"other shapes: b \(saved as \(2, 2\), here \(4,\)\)", model)
    assert_refused(tmp_path / "many", r"lacks a, b, c; the model lacks head\.0, head\.1, head\.2 and 7 more", (
        LayerLayout("x", (A, B, C)),
    ))  # fmt: skip


def test_what_was_frozen_must_be_frozen(tmp_path: Path) -> None:
    trained, frozen = LayerLayout("x", (A, B)), LayerLayout("x", (A, B), trainable=False)
    for name, layout in [("trained", trained), ("frozen", frozen)]:
        with server((layout,)) as eps:
            save(tmp_path / name, eps, checkpoint())
    assert_refused(tmp_path / "trained", r"trained when saved and frozen here \(.*\): a, b", (frozen,))
    assert_refused(tmp_path / "frozen", r"frozen when saved and trainable here \(.*\): a, b", (trained,))


# --- placement


@given(st.permutations([A, B, C]), st.sets(st.integers(1, 2)))
def test_h32_tensors_find_their_place_however_layers_are_cut(
    tmp_path_factory: Any, order: list[TensorSpec], cuts: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    bounds = [0, *sorted(cuts), 3]
    parts = [LayerLayout(f"part {i}", tuple(order[i:j])) for i, j in pairwise(bounds)]
    with server((LayerLayout("whole", (A, B, C)),), seed=1) as whole, server(parts, seed=2) as cut:
        whole_before, cut_before = state(whole), state(cut)
        save(folder / "whole", whole, checkpoint())
        for layout in parts:
            cut.set_applies(layout.name, 5)
        cut_before = state(cut)
        save(folder / "cut", cut, checkpoint())
        load(folder / "whole", cut)
        load(folder / "cut", whole)
        assert_same_state(state(cut), whole_before)
        assert_same_state(state(whole), cut_before)


def test_tensors_applied_different_numbers_of_times_cannot_share_a_layer(tmp_path: Path) -> None:
    with server((LayerLayout("one", (A,)), LayerLayout("two", (B,))), seed=1) as eps:
        save(tmp_path, eps, checkpoint())
    assert_refused(tmp_path, r"'both' would join a, applied 1 times, and b, applied 4 times", (
        LayerLayout("both", (A, B)),
    ))  # fmt: skip


# --- the change itself


def test_whoever_loads_can_refuse_before_anything_is_changed(copy: Path) -> None:
    def accept(found: Checkpoint) -> None:
        raise CheckpointError(f"no buffer {min(found.arrays)!r} here, step {found.step}")

    with server(seed=2) as eps:
        before = state(eps)
        with pytest.raises(CheckpointError, match="no buffer 'count' here, step 12"):
            load(copy, eps, accept)
        assert_same_state(state(eps), before)


def test_a_damaged_layer_is_sound_again(saved: Path) -> None:
    class Breaks(GoldenArithmetic):
        def fold(self, *args: Any, **kwargs: Any) -> None:
            raise MemoryError("no memory")

    with HostEPS(Breaks(), name="breaks") as eps:
        for layout in LAYERS:
            eps.create(layout)
        with pytest.raises(Exception, match="no memory"):
            eps.fold("scalars", np.zeros(eps.layout("scalars").size, np.float32), AdamHyper(), first=True).result()
        assert eps.damaged("scalars")
        load(saved, eps)
        assert eps.damaged("scalars") is None
        with server(seed=1) as good:
            assert_same_state(state(eps), state(good))


def test_a_failure_in_the_middle_says_that_the_state_is_mixed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as eps:
        write = eps.write

        def failing(layer: str, section: Section, values: Any) -> Any:
            if layer == "scalars":
                raise OSError(5, "Input/output error")
            return write(layer, section, values)

        with monkeypatch.context() as patch:
            patch.setattr(eps, "write", failing)
            with pytest.raises(
                CheckpointError, match=r"stopped in layer 'scalars'.* mixes two states: load a checkpoint"
            ):
                load(saved, eps)
        load(saved, eps)
        with server(seed=1) as good:
            assert_same_state(state(eps), state(good))


def test_an_unreadable_file_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "layer-00001.safetensors"
    (copy / name).unlink()
    (copy / name).mkdir()
    with GoldenEPS() as eps:
        for layout in LAYERS:
            eps.create(layout)
        with pytest.raises(CheckpointError, match=name):
            load(copy, eps)
