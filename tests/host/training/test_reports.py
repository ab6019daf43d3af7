"""Reports for machines and the line that sums a run up."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from relay_eps.errors import RelayEpsError
from relay_eps.training.events import Compared, Ended, Evaluated, Event, Noted, Saved, Started, Stepped
from relay_eps.training.reports import JsonLines, TensorBoard, amount, fan_out, last_line

STARTED = Started("runs/1", 0, 5, 100, 3, "software", "cpu", 64, "text", 1, 99, "abc", {"lr": 0.1})
STEPPED = Stepped(1, 2.5, 0.1, 1000.0, False, 0.5, 2**20, 1200)
ENDED = Ended(5, 5, False, "runs/1", 5.5551, 2.3149, 9000.4, None, 12897485, 1200, 12.0234, 8.5, "fe" * 32)


def test_every_event_is_one_json_object_with_its_fields_and_notes_are_not_on_stdout():
    out, err = io.StringIO(), io.StringIO()
    report = JsonLines(out, err)
    for event in (STARTED, Noted("by the way"), STEPPED, Evaluated(1, 2.0), Saved(1, "x"), ENDED):
        report(event)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["start", "step", "eval", "save", "end"]
    assert (lines[1]["loss"], lines[1]["device_peak"], lines[4]["hash"]) == (2.5, 2**20, "fe" * 32)
    assert err.getvalue() == "by the way\n"


def test_what_json_cannot_hold_becomes_null():
    out = io.StringIO()
    JsonLines(out, out)(replace(STEPPED, loss=float("nan"), grad_norm=float("inf")))
    assert (json.loads(out.getvalue())["loss"], json.loads(out.getvalue())["grad_norm"]) == (None, None)


def test_the_last_line_sums_the_run_up():
    assert last_line(ENDED) == (
        "validation loss 5.56 -> 2.31 nats/byte; 9,000 tokens/s; device peak 12.3 MiB; EPS 12.02 bytes/parameter"
    )
    beside = replace(ENDED, comparison=Compared(12345.0, 13000.0, 2**25))
    assert last_line(beside) == (
        "validation loss 5.56 -> 2.31 nats/byte; 12,345 tokens/s relay, 13,000 plain PyTorch (0.95x); "
        "device peak 12.3 MiB; EPS 12.02 bytes/parameter"
    )


def test_the_last_line_of_an_interrupted_run_says_how_to_go_on():
    stopped = replace(ENDED, step=2, interrupted=True, last_loss=None)
    assert last_line(stopped) == "interrupted at step 2 of 5; go on with: relay-eps resume runs/1"
    assert last_line(replace(stopped, run=None)) == "interrupted at step 2 of 5; nothing was kept"


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (12897485, "12.3 MiB"), (3 * 2**40, "3,072.0 GiB")],
)
def test_bytes_are_told_in_units_for_people(count: int, told: str):
    assert amount(count) == told


def test_all_reporters_are_told():
    told: list[tuple[int, Event]] = []
    fan_out([lambda e: told.append((1, e)), lambda e: told.append((2, e))])(STEPPED)
    assert told == [(1, STEPPED), (2, STEPPED)]


def test_tensorboard_has_the_curves_of_a_run_and_its_continuation(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    for first, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        board = TensorBoard(tmp_path)
        board(replace(STARTED, step=first))
        for step in steps:
            board(replace(STEPPED, step=step, loss=10.0 - step))
            board(Evaluated(step, 9.0 - step))
        board.close()
    logs = accumulator.EventAccumulator(str(tmp_path))
    logs.Reload()
    for name, at_one in (("loss/train", 9.0), ("loss/validation", 8.0)):
        assert [s.step for s in logs.Scalars(name)] == [1, 2, 3, 4]
        assert logs.Scalars(name)[0].value == at_one
    assert {"learning rate", "tokens per second", "gradient norm"} <= set(logs.Tags()["scalars"])


def test_without_tensorboard_the_way_to_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RelayEpsError, match="pip install tensorboard"):
        TensorBoard(tmp_path)
