"""Training runs: they learn, are repeatable, resume bit for bit, and fail without harm to what was saved."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relay_eps.checkpoint import newest
from relay_eps.data import TextData
from relay_eps.eps import Section
from relay_eps.errors import CheckpointError, DataError, NonFiniteLoss, RelayEpsError
from relay_eps.statehash import state_hash
from relay_eps.training.config import TrainConfig
from relay_eps.training.events import Ended, Evaluated, Event, Noted, Report, Saved, Started, Stepped
from relay_eps.training.folder import RunFolder
from relay_eps.training.run import CosineSchedule, Options, Session, resume, train
from tests.host.training.small import MODEL, Events, config

VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {},
    "adama": {"mode": "adama"},
    "clipped": {"clip": 0.5},
    "dropout": {"model": replace(MODEL, dropout=0.3)},
    "tied": {"model": replace(MODEL, tied=True)},
    "host stash, modelled link": {"stash": "host", "link_gbps": 100.0},
    "one batch": {"micro_batch": 6},
}


def interrupting_at(step: int, report: Report) -> Report:
    """``report``, and a Ctrl-C when that step has been done."""

    def told(event: Event) -> None:
        report(event)
        if isinstance(event, Stepped) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return told


def test_a_run_tells_its_story_and_learns(tmp_path: Path):
    events = Events()
    settings = config(tmp_path, steps=40, save_every=15, eval_every=20, lr=1e-2)
    ended = train(settings, tmp_path / "run", events)
    assert isinstance(events[0], Started)
    assert events[-1] is ended
    assert [e.step for e in events.of(Stepped)] == list(range(1, 41))
    assert [e.step for e in events.of(Evaluated)] == [0, 20, 40]
    assert [e.step for e in events.of(Saved)] == [15, 30, 40]
    assert newest(tmp_path / "run") == tmp_path / "run" / "step-00000040"
    losses = [e.loss for e in events.of(Evaluated)]
    assert (ended.first_loss, ended.last_loss) == (losses[0], losses[-1])
    assert losses[-1] < losses[0] - 1
    assert all(e.device_peak > 0 and e.tokens_per_second > 0 and not e.skipped for e in events.of(Stepped))
    assert (ended.step, ended.interrupted, ended.comparison) == (40, False, None)


def test_the_eps_holds_weights_and_two_moments(tmp_path: Path):
    events = Events()
    ended = train(config(tmp_path, steps=1), None, events)
    parameters = events.of(Started)[0].parameters
    assert ended.eps_bytes_per_parameter == pytest.approx(12, rel=0.02)
    assert ended.eps_bytes_per_parameter == ended.eps_bytes / parameters


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_interrupted_and_resumed_it_ends_with_the_bits_of_an_unbroken_run(tmp_path: Path, variant: str):  # H31
    settings = config(tmp_path, **VARIANTS[variant])
    unbroken = train(settings, None, Events())
    stopped = train(settings, tmp_path / "run", interrupting_at(2, Events()))
    assert (stopped.step, stopped.interrupted, stopped.last_loss) == (2, True, None)
    events = Events()
    ended = resume(tmp_path / "run", events)
    assert events.of(Started)[0].step == 2
    assert [e.step for e in events.of(Stepped)] == [3, 4, 5, 6]
    assert ended.hash == unbroken.hash
    assert (ended.first_loss, ended.last_loss) == (unbroken.first_loss, unbroken.last_loss)


def test_runs_repeat_and_seeds_differ(tmp_path: Path):
    settings = config(tmp_path, steps=2)
    one, two = train(settings, None, Events()), train(settings, None, Events())
    other = train(replace(settings, seed=1), None, Events())
    assert one.hash == two.hash != other.hash


def test_a_longer_resume_follows_the_longer_schedule(tmp_path: Path):
    settings = config(tmp_path, steps=3)
    train(settings, tmp_path / "run", Events())
    with pytest.raises(CheckpointError, match="has done all its 3 steps: give more with --steps"):
        resume(tmp_path / "run", Events())
    events = Events()
    assert resume(tmp_path / "run", events, steps=5).step == 5
    rates = [e.lr for e in events.of(Stepped)]
    schedule = CosineSchedule(settings.warmup, 5)
    assert rates == [settings.lr * schedule(step) for step in (3, 4)]
    # The new length is the run's own from now on.
    assert resume(tmp_path / "run", Events(), steps=6).steps == 6


def test_the_schedule_rises_then_falls_to_a_tenth():
    schedule = CosineSchedule(warmup=4, steps=20)
    factors = [schedule(step) for step in range(21)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[-1] == pytest.approx(0.1)
    assert CosineSchedule(0, 5)(0) == 1.0


def test_the_rates_of_a_run_are_the_schedules(tmp_path: Path):
    events = Events()
    settings = config(tmp_path)
    train(settings, None, events)
    schedule = CosineSchedule(settings.warmup, settings.steps)
    assert [e.lr for e in events.of(Stepped)] == [settings.lr * schedule(step) for step in range(6)]


def test_clipping_is_said_to_be_deferred_once_and_reports_norms(tmp_path: Path):
    events = Events()
    ended = train(config(tmp_path, clip=0.5), None, events)
    (note,) = events.of(Noted)
    assert "the EPS keeps the summed gradients, 4 bytes a parameter more" in note.text
    assert all(e.grad_norm > 0 for e in events.of(Stepped))
    assert ended.eps_bytes_per_parameter == pytest.approx(16, rel=0.02)


def test_adama_with_clipping_is_refused_before_a_folder_is_made(tmp_path: Path):
    with pytest.raises(RelayEpsError):
        train(config(tmp_path, mode="adama", clip=1.0), tmp_path / "run", Events())
    assert not (tmp_path / "run").exists()


def test_a_comparison_changes_no_bits(tmp_path: Path):
    settings = config(tmp_path, steps=8)
    alone = train(settings, None, Events())
    beside = train(settings, None, Events(), Options(compare=True))
    assert beside.hash == alone.hash
    assert beside.comparison is not None
    assert beside.comparison.plain_tokens_per_second > 0
    # Weights, gradients and moments of the whole model are on the plain device.
    assert beside.comparison.plain_device_peak > 16 * beside.eps_bytes / 12 * 0.98


def test_comparing_resumes_too(tmp_path: Path):
    train(config(tmp_path, steps=2), tmp_path / "run", Events())
    assert resume(tmp_path / "run", Events(), Options(compare=True), steps=8).comparison is not None


# --- what goes wrong


def poisoning_at(step: int, session: Callable[[], Session]) -> Report:
    """A NaN in the head's weights after that step."""

    def told(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == step:
            server = session().server
            layer = server.layers()[-1]
            values = server.read(layer, Section.P).result()
            values[0] = np.nan
            server.write(layer, Section.P, values).result()

    return told


def test_nan_in_the_weights_stops_the_run_and_is_never_saved(tmp_path: Path):
    settings = config(tmp_path, save_every=2)
    train(replace(settings, steps=2), tmp_path / "run", Events())
    unbroken = resume(tmp_path / "run", Events(), steps=4).hash
    made: list[Session] = []
    with Session(settings, TextData.load(settings.paths), poisoning_at(5, lambda: made[0]), Options()) as session:
        made.append(session)
        session.folder = RunFolder(tmp_path / "run")
        session.restore()
        with pytest.raises(NonFiniteLoss):
            session.run()
    assert newest(tmp_path / "run") == tmp_path / "run" / "step-00000004"
    with Session(settings, TextData.load(settings.paths), Events(), Options()) as session:
        session.folder = RunFolder(tmp_path / "run")
        session.restore()
        assert state_hash(session.server, seed=settings.seed, step=4) == unbroken


def test_a_rate_that_explodes_is_a_non_finite_loss_and_leaves_the_last_checkpoint(tmp_path: Path):
    settings = config(tmp_path, lr=1e30, warmup=0, save_every=1)
    with pytest.raises(NonFiniteLoss):
        train(settings, tmp_path / "run", Events())
    assert newest(tmp_path / "run") == tmp_path / "run" / "step-00000001"


def test_changed_text_is_refused_on_resume(tmp_path: Path):
    settings = config(tmp_path)
    train(settings, tmp_path / "run", interrupting_at(2, Events()))
    Path(settings.paths[0]).write_text("something else altogether" * 100)
    with pytest.raises(DataError, match="has changed since the run was started"):
        resume(tmp_path / "run", Events())


def test_text_too_short_for_the_context_is_refused_before_a_folder_is_made(tmp_path: Path):
    settings = config(tmp_path)
    Path(settings.paths[0]).write_text("short")
    with pytest.raises(DataError, match="too few for a context of 8"):
        train(settings, tmp_path / "run", Events())
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_is_refused(tmp_path: Path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(RelayEpsError, match="CUDA"):
        train(config(tmp_path, device="cuda"), None, Events())
    with pytest.raises(RelayEpsError, match="toaster"):
        train(config(tmp_path, device="toaster"), None, Events())


def test_a_run_that_is_interrupted_before_its_first_step_can_be_resumed(tmp_path: Path):
    settings = config(tmp_path)

    def interrupting(event: Event) -> None:
        if isinstance(event, Evaluated) and event.step == 0:
            signal.raise_signal(signal.SIGINT)

    assert train(settings, tmp_path / "run", interrupting).step == 0
    assert resume(tmp_path / "run", Events()).hash == train(settings, None, Events()).hash


def test_settings_give_the_threads(tmp_path: Path):
    before = torch.get_num_threads()
    try:
        events = Events()
        train(config(tmp_path, steps=1, threads=1), None, events)
        assert torch.get_num_threads() == 1
        assert "1 thread)" in events.of(Started)[0].eps
    finally:
        torch.set_num_threads(before)


def test_a_default_run_is_a_valid_one():
    assert TrainConfig().bytes_per_step == TrainConfig().batch * TrainConfig().model.context


def test_ended_is_the_last_event_after_an_interrupt_too(tmp_path: Path):
    events = Events()
    train(config(tmp_path), None, interrupting_at(1, events))
    assert isinstance(events[-1], Ended)
    assert events[-1].run is None


def test_a_run_that_diverged_is_no_success_and_is_not_saved(tmp_path: Path):
    with pytest.raises(NonFiniteLoss, match="the validation loss after step 1 is nan: training has diverged"):
        train(
            config(tmp_path, steps=1, warmup=0, lr=1e30, weight_decay=0.0), RunFolder(tmp_path / "run").path, Events()
        )
    assert newest(tmp_path / "run") is None
