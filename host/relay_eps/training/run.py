"""The training loop: steps, evaluations and checkpoints of one run, told as events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from relay_eps.data import TextData
from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.software import SoftwareEPS
from relay_eps.errors import CheckpointError, NonFiniteLoss
from relay_eps.interrupt import GracefulInterrupt
from relay_eps.models.gpt import Gpt, next_byte_loss
from relay_eps.relay import ModelledLink, Relay, StepResult
from relay_eps.statehash import state_hash
from relay_eps.training.comparison import PlainTraining
from relay_eps.training.config import BETAS, TrainConfig
from relay_eps.training.events import Ended, Evaluated, Noted, Report, Saved, Started, Stepped
from relay_eps.training.folder import RunFolder

#: Plain PyTorch is timed beside every so many steps of the relay.
_COMPARE_EVERY = 20
#: The first steps of a session allocate and are measured; they say nothing of its speed.
_WARM_UP = 2
#: The learning rate ends at this share of its highest value.
_LOWEST_RATE = 0.1


@dataclass(frozen=True)
class Options:
    """What changes how a run is watched, and not its bits."""

    #: Time plain PyTorch in between, in memory of its own.
    compare: bool = False
    #: Called at the first Ctrl-C, inside the signal handler.
    on_interrupt: Callable[[], None] | None = None


def train(config: TrainConfig, folder: Path | None, report: Report, options: Options = Options()) -> Ended:
    """Train a new run; with a folder, leave a checkpoint there at the end, at Ctrl-C and every ``save_every`` steps.

    Returns the last event. Raises RelayEpsError, with the folder as it was unless a run had been started in it.
    """
    if folder is not None:
        RunFolder.refuse_taken(folder)
    text = TextData.load(config.paths)
    with Session(config, text, report, options) as session:
        if folder is not None:
            session.folder = RunFolder.create(folder, config, text)
        return session.run()


def resume(folder: Path, report: Report, options: Options = Options(), *, steps: int | None = None) -> Ended:
    """Go on with a run from its newest checkpoint, to ``steps`` steps in all; the bits are those of an unbroken run.

    Another number of steps than the run was started with stretches the learning rate's cosine. Raises CheckpointError
    where there is nothing to resume or no step is left, DataError where the text has changed.
    """
    run, config, known = RunFolder.open(folder)
    if steps is not None:
        config = config.with_steps(steps)
    data = TextData.load(config.paths)
    known.check(data)
    with Session(config, data, report, options) as session:
        session.folder = run
        session.restore()
        if steps is not None:
            run.record(config, known)
        return session.run()


@dataclass(frozen=True)
class CosineSchedule:
    """The learning rate's factor after ``step`` updates: a linear warm-up, then half a cosine down to a tenth."""

    warmup: int
    steps: int

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return _LOWEST_RATE + (1 - _LOWEST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


class Session:
    """One process's share of a run: the model, the server and the place in the data."""

    def __init__(self, config: TrainConfig, data: TextData, report: Report, options: Options) -> None:
        data.check(config.model.context)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.config = config
        self.folder: RunFolder | None = None
        self._data = data
        self._report = report
        self._options = options
        self._first_loss: float | None = None
        self._seconds: list[float] = []
        self._device_peak: int | None = None
        self._saved_at: int | None = None
        model = Gpt(config.model, config.seed)
        self._parameters = sum(p.numel() for p in model.parameters())
        self.server = make_server(config)
        try:
            self.relay = _make_relay(config, model, self.server)
        except BaseException:
            self.server.close()
            raise
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self.relay.optimizer, self._schedule)
        self._plain = PlainTraining(config) if options.compare else None

    def restore(self) -> None:
        """Load the folder's newest checkpoint."""
        assert self.folder is not None
        extra = self.relay.load(self.folder.path)
        self._first_loss = extra["first_loss"]
        self._scheduler.load_state_dict(extra["scheduler"])
        # The number of steps may be another one now, and with it the rate of the next step.
        updates = self._scheduler.last_epoch
        for group, base in zip(self.relay.optimizer.param_groups, self._scheduler.base_lrs, strict=True):
            group["lr"] = base * self._schedule(updates)
        self._saved_at = self.relay.steps_done
        if self.relay.steps_done >= self.config.steps:
            raise CheckpointError(
                f"{self.folder.path} has done all its {self.relay.steps_done} steps: "
                "give more with --steps to train it longer"
            )

    def run(self) -> Ended:
        """Do the steps that are left, or those before a Ctrl-C."""
        started = time.perf_counter()
        self._report(self._started())
        self._note_deferral()
        with GracefulInterrupt(self._options.on_interrupt) as interrupt:
            if self._first_loss is None:
                self._first_loss = self._evaluate()
            loss = None
            while self.relay.steps_done < self.config.steps and not interrupt.requested:
                self._step()
                loss = self._evaluate() if self._due(self.config.eval_every) else None
                if self._due(self.config.save_every):
                    self._save()
            interrupted = self.relay.steps_done < self.config.steps
            if loss is None and not interrupted:
                loss = self._evaluate()
            self._save()
        ended = self._ended(loss, interrupted, time.perf_counter() - started)
        self._report(ended)
        return ended

    def close(self) -> None:
        """Stop threads and free memory."""
        self.relay.close()
        self.server.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- inside

    @property
    def _schedule(self) -> CosineSchedule:
        return CosineSchedule(self.config.warmup, self.config.steps)

    def _due(self, every: int) -> bool:
        return every > 0 and self.relay.steps_done % every == 0

    def _step(self) -> None:
        config, step = self.config, self.relay.steps_done
        rate = float(self.relay.optimizer.param_groups[0]["lr"])
        batch = self._data.batch(seed=config.seed, step=step, batch=config.batch, context=config.model.context)
        inputs, targets = map(torch.from_numpy, batch)
        result, seconds = self._timed_step(inputs, targets)
        if not result.skipped:
            self._scheduler.step()
        self._report(
            Stepped(
                step=step + 1,
                loss=result.loss,
                lr=rate,
                tokens_per_second=config.bytes_per_step / seconds,
                skipped=result.skipped,
                grad_norm=result.grad_norm,
                device_peak=self._device_peak or 0,
                eps_bytes=self.server.stored_bytes(),
            )
        )
        if self._plain is not None and self._compares_after(len(self._seconds)):
            self._plain.beside(seconds, inputs, targets)

    def _timed_step(self, inputs: Tensor, targets: Tensor) -> tuple[StepResult, float]:
        started = time.perf_counter()
        if self._device_peak is None:
            with self.relay.measure_device_peak() as peak:
                result = self.relay.step(inputs, targets, next_byte_loss)
            self._device_peak = peak.bytes
        else:
            result = self.relay.step(inputs, targets, next_byte_loss)
        # Updates that still run behind the step belong to its time.
        self.server.synchronize()
        seconds = time.perf_counter() - started
        self._seconds.append(seconds)
        return result, seconds

    def _compares_after(self, done: int) -> bool:
        """Whether plain PyTorch is timed after the session's step number ``done``."""
        every = max(1, min(_COMPARE_EVERY, self.config.steps // 4))
        return done > _WARM_UP and done % every == 0

    def _evaluate(self) -> float:
        batch = self._data.validation_batch(sequences=self.config.eval_sequences, context=self.config.model.context)
        inputs, targets = map(torch.from_numpy, batch)
        loss = self.relay.evaluate(inputs, targets, next_byte_loss)
        if not math.isfinite(loss):
            raise NonFiniteLoss(
                f"the validation loss after step {self.relay.steps_done} is {loss}: training has diverged, and nothing "
                "more is saved; go on from an earlier checkpoint with a lower learning rate"
            )
        self._report(Evaluated(self.relay.steps_done, loss))
        return loss

    def _save(self) -> None:
        step = self.relay.steps_done
        if self.folder is None or self._saved_at == step:
            return
        extra = {"first_loss": self._first_loss, "scheduler": _scheduler_record(self._scheduler)}
        path = self.relay.save(self.folder.path, extra)
        self._saved_at = step
        self._report(Saved(step, str(path)))

    def _started(self) -> Started:
        return Started(
            run=self._run_name,
            step=self.relay.steps_done,
            steps=self.config.steps,
            parameters=self._parameters,
            layers=len(self.relay.plans),
            eps=self.server.capabilities.name,
            device=str(self.relay.device),
            bytes_per_step=self.config.bytes_per_step,
            source=self._data.source,
            files=self._data.files,
            size=self._data.size,
            fingerprint=self._data.fingerprint,
            config=self.config.to_record(),
        )

    def _ended(self, loss: float | None, interrupted: bool, seconds: float) -> Ended:
        assert self._first_loss is not None
        steady = self._seconds[_WARM_UP:]
        stored = self.server.stored_bytes()
        return Ended(
            step=self.relay.steps_done,
            steps=self.config.steps,
            interrupted=interrupted,
            run=self._run_name,
            first_loss=self._first_loss,
            last_loss=loss,
            tokens_per_second=self.config.bytes_per_step / median(steady) if steady else None,
            comparison=self._plain.result() if self._plain is not None else None,
            device_peak=self._device_peak,
            eps_bytes=stored,
            eps_bytes_per_parameter=stored / self._parameters,
            seconds=seconds,
            hash=state_hash(self.server, seed=self.config.seed, step=self.relay.steps_done),
        )

    @property
    def _run_name(self) -> str | None:
        return str(self.folder.path) if self.folder is not None else None

    def _note_deferral(self) -> None:
        if self.relay.deferred:
            self._report(
                Noted(
                    "clipping by global norm defers every update to the end of the backward: "
                    "the EPS keeps the summed gradients, 4 bytes a parameter more"
                )
            )


def make_server(config: TrainConfig) -> EagerParamServer:
    """The parameter server that a run asks for; raises RelayEpsError where it cannot be had."""
    return SoftwareEPS(wire=config.wire, threads=config.threads)


def _make_relay(config: TrainConfig, model: Gpt, server: EagerParamServer) -> Relay:
    return Relay(
        model,
        lr=config.lr,
        betas=BETAS,
        weight_decay=config.weight_decay,
        micro_batch=config.micro_batch,
        mode=config.mode,
        max_grad_norm=config.clip,
        stash=config.stash,
        device=config.device,
        link=ModelledLink(config.link_gbps * 1e9 / 8) if config.link_gbps is not None else None,
        server=server,
        seed=config.seed,
    )


def _scheduler_record(scheduler: torch.optim.lr_scheduler.LambdaLR) -> dict[str, Any]:
    """The scheduler's state but for the schedule itself, which the run's settings hold."""
    return {**scheduler.state_dict(), "lr_lambdas": [None]}
