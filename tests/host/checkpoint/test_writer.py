"""Saving: the bits that were there, the order of operations, and whatever can go wrong on the way to the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

from relay_eps.checkpoint import disk, load, newest, save, writer
from relay_eps.eps import AdamHyper, EagerParamServer, LayerLayout, Section, SoftwareEPS, TensorSpec
from relay_eps.errors import CheckpointError, ContractError
from tests.host.checkpoint.states import LAYERS, State, assert_same_state, checkpoint, contents, server, state

#: Everything by which a save touches the disk; what a process can be killed, or a disk fail, before and after.
OPERATIONS = (
    *((os, name) for name in ("mkdir", "rename", "fsync", "unlink", "rmdir")),
    *((writer, "save_file"), (Path, "chmod"), (writer, "sha256"), (Path, "write_bytes")),
)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, before: Callable[[str, Any], None]) -> Iterator[None]:
    """Call ``before(operation, first argument)`` before each operation of the block."""
    with monkeypatch.context() as patch:
        for owner, name in OPERATIONS:
            patch.setattr(owner, name, _watching(getattr(owner, name), name, before))
        yield


def _watching(call: Callable[..., Any], name: str, before: Callable[[str, Any], None]) -> Callable[..., Any]:
    def watching(*args: Any, **kwargs: Any) -> Any:
        before(name, args[0])
        return call(*args, **kwargs)

    return watching


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def loaded(folder: Path) -> State:
    with server() as fresh:
        load(folder, fresh)
        return state(fresh)


# --- what is saved


@pytest.mark.parametrize("folder", ["runs", "with spaces/ünïcode \N{SNOWMAN}", "a/b/c"])
def test_every_bit_comes_back(tmp_path: Path, folder: str) -> None:
    with server(seed=3) as eps, server(seed=4) as other:
        path = save(tmp_path / folder, eps, checkpoint(12, lr=0.1))
        assert path == tmp_path / folder / "step-00000012"
        back = load(tmp_path / folder, other)
        assert_same_state(state(other), state(eps))
    assert (back.step, back.record, back.arrays) == (12, {"lr": 0.1}, {})
    assert names(tmp_path / folder) == ["step-00000012"]


def test_h31_h32_moments_and_counts_continue_on_another_server_bit_for_bit(tmp_path: Path) -> None:
    def train(eps: Any, steps: range) -> None:
        for step in steps:
            for layout in LAYERS:
                if layout.trainable:
                    gradient = np.random.default_rng(step).standard_normal(layout.size, np.float32)
                    for start, stop in layout.gaps():
                        gradient[start:stop] = 0
                    eps.fold_apply(layout.name, gradient, AdamHyper(), first=True).result()

    with server() as eps, SoftwareEPS(wire="bf16") as other:
        for layout in LAYERS:
            other.create(layout)
        train(eps, range(3))
        save(tmp_path, eps, checkpoint(3))
        load(tmp_path, other)
        train(eps, range(3, 6))
        train(other, range(3, 6))
        assert_same_state(state(other), state(eps))


def test_a_nan_in_v_is_saved_without_its_sign_so_that_it_can_be_loaded(tmp_path: Path) -> None:
    layout = LayerLayout("x", (TensorSpec("x", (2,)),))
    with server((layout,)) as eps, server((layout,)) as other:
        eps.write("x", Section.V, np.full(layout.size, np.inf, np.float32)).result()
        eps.fold("x", np.zeros(layout.size, np.float32), AdamHyper(beta2=0.0), first=True).result()
        assert np.isnan(eps.read("x", Section.V).result()[:2]).all()
        save(tmp_path, eps, checkpoint())
        load(tmp_path, other)
        assert np.isnan(other.read("x", Section.V).result()[:2]).all()


def test_two_layers_with_a_tensor_of_one_name_are_refused(tmp_path: Path) -> None:
    layouts = [LayerLayout(name, (TensorSpec("weight", (2,)),)) for name in ("a", "b")]
    with server(layouts) as eps, pytest.raises(CheckpointError, match="'weight' is in layer 'a' and in layer 'b'"):
        save(tmp_path, eps, checkpoint())
    assert names(tmp_path) == []


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with server() as eps:
        with pytest.raises(CheckpointError, match=r"record\.odd, of type set"):
            save(tmp_path / "run", eps, checkpoint(odd=set()))
        with pytest.raises(CheckpointError, match="must not be negative"):
            save(tmp_path / "run", eps, checkpoint(-1))
    assert not (tmp_path / "run").exists()


def test_h28_memory_of_one_layer_to_save_and_of_less_to_load(tmp_path: Path) -> None:
    import tracemalloc

    elements = 1 << 20
    layer = 12 * elements
    layouts = [LayerLayout(f"{i}", (TensorSpec(f"{i}.w", (elements // 2, 2)),)) for i in range(4)]

    def peak(work: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            work()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    with server(layouts, seed=1) as eps:
        slack = 2 * disk.CHUNK
        assert layer > 4 * slack
        assert peak(lambda: save(tmp_path, eps, checkpoint())) < layer + slack
        assert peak(lambda: load(tmp_path, eps)) < layer + slack


def test_equal_states_make_equal_files(tmp_path: Path) -> None:
    with server(seed=1) as eps:
        saved = [contents(save(tmp_path / f"{i}", eps, checkpoint())) for i in range(8)]
    assert all(each == saved[0] for each in saved)


def test_files_are_as_open_as_others_that_the_user_makes(tmp_path: Path) -> None:
    for mask, mode in [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)]:
        before = os.umask(mask)
        try:
            with server() as eps:
                path = save(tmp_path / f"{mask}", eps, checkpoint())
        finally:
            os.umask(before)
        assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {mode}


# --- replacing


def test_the_previous_checkpoint_goes_only_when_the_new_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    with server(seed=1) as eps:
        save(tmp_path, eps, checkpoint(1))
        with watched(monkeypatch, lambda name, what: calls.append(name)):
            save(tmp_path, eps, checkpoint(2))
    written = [name for name in calls if hasattr(os, name) and name != "chmod"]
    files = len(LAYERS) + 2
    # The files, their folder; the rename, the parent; only then the old one, renamed out of the way first.
    assert written[: files + 5] == ["mkdir"] + ["fsync"] * (files + 1) + ["rename", "fsync", "rename"]
    assert set(written[files + 5 :]) == {"unlink", "rmdir"}
    assert names(tmp_path) == ["step-00000002"]


@pytest.mark.parametrize("second", [7, 8], ids=["the same step again", "the next step"])
def test_there_is_a_complete_checkpoint_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    seen = set()
    with server(seed=1) as eps, server(seed=2) as after:
        states = {1: state(eps), 2: state(after)}
        save(tmp_path, eps, checkpoint(7, number=1))

        def look(name: str, what: Any) -> None:
            with server() as fresh:
                number = load(tmp_path, fresh).record["number"]
                assert_same_state(state(fresh), states[number])
            seen.add(number)

        with watched(monkeypatch, look):
            save(tmp_path, after, checkpoint(second, number=2))
        assert_same_state(loaded(tmp_path), states[2])
    assert seen == {1, 2}
    assert names(tmp_path) == [f"step-{second:08d}"]


@pytest.mark.parametrize("second", [7, 8], ids=["the same step again", "the next step"])
def test_a_disk_that_fails_at_any_operation_costs_nothing_that_was_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    with server(seed=1) as eps, server(seed=2) as after:
        states = {1: state(eps), 2: state(after)}
        for failing in range(1000):
            folder = tmp_path / str(failing)
            save(folder, eps, checkpoint(7, number=1))
            countdown = iter(range(failing, -1, -1))

            def fail(name: str, what: Any, countdown: Iterator[int] = countdown) -> None:
                if next(countdown, None) == 0:
                    raise (SafetensorError if name == "save_file" else OSError)(28, "No space left on device")

            said = ""
            with watched(monkeypatch, fail):
                try:
                    save(folder, after, checkpoint(second, number=2))
                except (CheckpointError, RuntimeWarning) as error:
                    said = str(error)
            # One sentence that names the place and the size of what did not fit; or, where the new one is in place,
            # that the old one could not be removed.
            full = "No space left on device" in said and f"It takes over {size_of(eps):,} bytes" in said
            assert said == "" or (str(folder) in said and (full or "is saved, but the previous" in said))
            found = newest(folder)
            assert found is not None
            with server() as fresh:
                number = load(found, fresh).record["number"]
                assert_same_state(state(fresh), states[number])
            assert found.name == ("step-00000007" if number == 1 else f"step-{second:08d}")
            assert not [name for name in names(folder) if name.startswith(".writing-")]
            # The next save, with the disk in order again, leaves nothing of all this.
            save(folder, after, checkpoint(second, number=2))
            assert names(folder) == [f"step-{second:08d}"]
            if next(countdown, None) is not None:
                break
        assert not said
        assert failing > 20


def size_of(eps: EagerParamServer) -> int:
    return 4 * sum(bits.size for _, sections in state(eps).values() for bits in sections.values())


def test_a_step_can_be_saved_again_and_again(tmp_path: Path) -> None:
    for seed in range(4):
        with server(seed=seed) as eps:
            save(tmp_path, eps, checkpoint(5))
            assert names(tmp_path) == ["step-00000005"]
            assert_same_state(loaded(tmp_path), state(eps))


def test_a_step_moved_aside_by_a_killed_save_is_loaded_and_then_replaced(tmp_path: Path) -> None:
    with server(seed=1) as eps, server(seed=2) as after:
        path = save(tmp_path, eps, checkpoint(5))
        path.rename(tmp_path / "step-00000005.previous")
        assert newest(tmp_path) == tmp_path / "step-00000005.previous"
        assert_same_state(loaded(tmp_path), state(eps))
        save(tmp_path, after, checkpoint(5))
        assert names(tmp_path) == ["step-00000005"]
        shutil.copytree(tmp_path / "step-00000005", tmp_path / "step-00000005.previous")
        assert newest(tmp_path) == tmp_path / "step-00000005"
        save(tmp_path, eps, checkpoint(5))
        assert names(tmp_path) == ["step-00000005"]
        assert_same_state(loaded(tmp_path), state(eps))


def test_a_later_step_is_never_removed_nor_hidden(tmp_path: Path) -> None:
    with server(seed=1) as eps:
        save(tmp_path, eps, checkpoint(500))
        before = contents(tmp_path)
        with pytest.raises(CheckpointError, match="holds step-00000500, which is later than step 3"):
            save(tmp_path, eps, checkpoint(3))
    assert contents(tmp_path) == before


def test_other_files_and_incomplete_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-00000001").mkdir()
    with server() as eps:
        save(tmp_path, eps, checkpoint(2))
        assert names(tmp_path) == ["notes.txt", "step-00000001", "step-00000002"]
        (tmp_path / "step-00000003").mkdir()
        with pytest.raises(CheckpointError, match="is in the way and is no complete checkpoint"):
            save(tmp_path, eps, checkpoint(3))


# --- what others left, and others at work


def test_leftovers_of_killed_processes_go_at_the_next_save(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    run = tmp_path / "run"
    (run / ".writing-step-00000003-1").mkdir(parents=True)
    (run / ".writing-step-00000003-1" / "layer-00000.safetensors").write_bytes(b"half")
    (run / ".removing-step-00000002").mkdir()
    (run / ".writing-link").symlink_to(precious)
    (run / ".writing-file").write_text("")
    with server() as eps:
        save(run, eps, checkpoint(4))
    assert names(run) == ["step-00000004"]
    assert names(precious) == ["file"]


def test_a_folder_in_which_another_process_saves_is_refused(tmp_path: Path) -> None:
    with server() as eps:
        save(tmp_path, eps, checkpoint(1))
        (tmp_path / ".writing-other").mkdir()
        with disk.locked(tmp_path), pytest.raises(CheckpointError, match="another process is saving into"):
            save(tmp_path, eps, checkpoint(2))
        assert names(tmp_path) == [".writing-other", "step-00000001"]
        save(tmp_path, eps, checkpoint(2))
    assert names(tmp_path) == ["step-00000002"]


def test_symbolic_links_are_followed_to_read_and_never_to_remove(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with server(seed=1) as eps:
        path = save(tmp_path / "run", eps, checkpoint(1))
        assert names(tmp_path / "disk") == ["step-00000001"]
        path.rename(tmp_path / "archive")
        path.symlink_to(tmp_path / "archive")
        assert_same_state(loaded(tmp_path / "run"), state(eps))
        save(tmp_path / "run", eps, checkpoint(1))
        assert not path.is_symlink()
        save(tmp_path / "run", eps, checkpoint(2))
        assert names(tmp_path / "run") == ["step-00000002"]
        assert_same_state(loaded(tmp_path / "archive"), state(eps))


# --- failures on the way


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ContractError])
def test_any_other_error_passes_through_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with server(seed=1) as eps:
        save(tmp_path, eps, checkpoint(1))
        before = contents(tmp_path)
        read, calls = eps.read, iter(range(5, -1, -1))

        def failing(layer: str, section: Section, out: Any = None) -> Any:
            if next(calls) == 0:
                raise error("in the middle")
            return read(layer, section, out)

        monkeypatch.setattr(eps, "read", failing)
        with pytest.raises(error, match="in the middle"):
            save(tmp_path, eps, checkpoint(2))
        assert contents(tmp_path) == before
        assert names(tmp_path) == ["step-00000001"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with server() as eps:
        with pytest.raises(CheckpointError, match=r"step 12 could not be saved: .*file: Not a directory\. It takes"):
            save(tmp_path / "file" / "run", eps, checkpoint())
        (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
        with pytest.raises(CheckpointError, match="dangling"):
            save(tmp_path / "dangling", eps, checkpoint())


def test_a_read_only_folder_is_named_and_keeps_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(seed=1) as eps:
        save(tmp_path, eps, checkpoint(1))
        # A relative path, since an unprivileged user may not be let through the folders above.
        monkeypatch.chdir(tmp_path)
        tmp_path.chmod(0o555)
        was_root = os.geteuid() == 0
        try:
            if was_root:
                os.seteuid(65534)
            with pytest.raises(CheckpointError, match="Permission denied"):
                save(Path(), eps, checkpoint(2))
        finally:
            if was_root:
                os.seteuid(0)
            tmp_path.chmod(0o755)
        assert names(tmp_path) == ["step-00000001"]
        assert_same_state(loaded(tmp_path), state(eps))
