"""Text data: which files are read, in which order, and batches that depend on (seed, step) alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_eps.data import TextData
from relay_eps.errors import DataError


def everything(data: TextData) -> bytes:
    return data.train.tobytes() + data.validation.tobytes()


def test_files_are_read_in_the_order_of_their_paths_and_binaries_passed_over(tmp_path: Path):
    for name, contents in {
        "b.txt": b"second ",
        "a.md": "first \N{GREEK SMALL LETTER ALPHA} ".encode(),
        "c/z.py": b"third ",
        "c/picture.png": b"\x89PNG\xff",
        "c/zeros": b"text and a \0",
        "c/nothing": b"",
        ".git/config": b"hidden",
        "site-packages/x.py": b"installed",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(contents)
    data = TextData.load([tmp_path])
    assert everything(data).decode() == "first \N{GREEK SMALL LETTER ALPHA} second third "
    assert data.files == 3


def test_paths_are_read_in_the_order_they_are_named(tmp_path: Path):
    (tmp_path / "a").write_text("a" * 50)
    (tmp_path / "b").write_text("b" * 50)
    data = TextData.load([tmp_path / "b", tmp_path / "a"])
    assert everything(data) == b"b" * 50 + b"a" * 50
    assert (len(data.train), len(data.validation)) == (90, 10)


def test_the_fingerprint_tells_one_byte_from_another(tmp_path: Path):
    file = tmp_path / "text"
    file.write_text("some text")
    before = TextData.load([file]).fingerprint
    assert TextData.load([tmp_path]).fingerprint == before
    file.write_text("some tExt")
    assert TextData.load([file]).fingerprint != before


def test_the_default_is_this_pythons_library():
    data = TextData.load()
    assert data.size > 1_000_000
    assert b"import" in everything(data)


@pytest.mark.parametrize(
    ("contents", "message"),
    [(b"", "is empty"), (b"\xff\xfe", "not UTF-8 text"), (b"a\0b", "not UTF-8 text")],
    ids=["empty", "latin", "zeros"],
)
def test_a_named_file_that_cannot_be_used_is_refused(tmp_path: Path, contents: bytes, message: str):
    file = tmp_path / "bad.txt"
    file.write_bytes(contents)
    with pytest.raises(DataError, match=message) as raised:
        TextData.load([file])
    assert str(file) in str(raised.value)


def test_a_missing_path_and_a_folder_without_text_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        TextData.load([tmp_path / "nowhere"])
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(DataError, match="holds no text"):
        TextData.load([tmp_path])


@given(size=st.integers(0, 400), context=st.integers(1, 40))
def test_text_is_refused_exactly_when_a_part_is_too_short_for_one_sequence(size: int, context: int):
    data = TextData.of_bytes(np.zeros(size, np.uint8))
    if min(len(data.train), len(data.validation)) > context:
        data.check(context)
    else:
        with pytest.raises(DataError, match="too few for a context") as raised:
            data.check(context)
        # What the message asks for is enough.
        needed = int(str(raised.value).split("at least ")[1].split()[0])
        TextData.of_bytes(np.zeros(needed, np.uint8)).check(context)


@given(
    seed=st.integers(0, 2**63 - 1),
    step=st.integers(0, 2**40),
    batch=st.integers(1, 5),
    context=st.integers(1, 20),
)
def test_a_batch_is_text_and_a_function_of_seed_and_step(seed: int, step: int, batch: int, context: int):
    data = TextData.of_bytes(np.random.default_rng(0).integers(0, 256, 300, np.uint8))
    inputs, targets = data.batch(seed=seed, step=step, batch=batch, context=context)
    assert inputs.shape == targets.shape == (batch, context)
    assert inputs.dtype == targets.dtype == np.int64
    text = data.train.tobytes()
    for before, after in zip(inputs, targets, strict=True):
        assert bytes([before[0], *after.tolist()]) in text
        assert before[1:].tolist() == after[:-1].tolist()
    again, _ = data.batch(seed=seed, step=step, batch=batch, context=context)
    assert np.array_equal(inputs, again)


def test_steps_and_seeds_draw_different_batches():
    data = TextData.of_bytes(np.random.default_rng(0).integers(0, 256, 10_000, np.uint8))
    drawn = {
        data.batch(seed=seed, step=step, batch=2, context=8)[0].tobytes() for seed in range(10) for step in range(10)
    }
    assert len(drawn) == 100


@given(size=st.integers(200, 2000), sequences=st.integers(1, 50), context=st.integers(1, 15))
def test_validation_sequences_are_spread_over_the_validation_text_alone(size: int, sequences: int, context: int):
    text = np.zeros(size, np.uint8)
    text[TextData.of_bytes(text).train.size :] = 1
    inputs, targets = TextData.of_bytes(text).validation_batch(sequences=sequences, context=context)
    assert 1 <= len(inputs) <= sequences
    assert inputs.min() == targets.min() == 1
