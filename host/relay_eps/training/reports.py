"""Reporters for machines: JSON lines and TensorBoard; and the one line that sums up a run."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from relay_eps.errors import RelayEpsError
from relay_eps.training.events import Ended, Evaluated, Event, Noted, Report, Saved, Started, Stepped

#: The ``event`` member of each kind's JSON line.
_JSON_NAMES: dict[type, str] = {Started: "start", Stepped: "step", Evaluated: "eval", Saved: "save", Ended: "end"}


def fan_out(reports: Iterable[Report]) -> Report:
    """One reporter that passes each event on to all of ``reports``."""
    listeners = tuple(reports)

    def report(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return report


class JsonLines:
    """One JSON object a line on ``out``, and notes on ``err``. Numbers that JSON cannot hold become null."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err

    def __call__(self, event: Event) -> None:
        if isinstance(event, Noted):
            print(event.text, file=self._err, flush=True)
            return
        line = {"event": _JSON_NAMES[type(event)], **_finite(asdict(event))}
        print(json.dumps(line, allow_nan=False), file=self._out, flush=True)


class TensorBoard:
    """Scalars in a TensorBoard folder; a resumed run goes on in the same curves. Close it at the end.

    Raises RelayEpsError, with what to install, where the tensorboard package is missing.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RelayEpsError("--logdir needs TensorBoard: pip install tensorboard") from error
        self._open: Callable[..., Any] = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            # Steps that a killed run had logged after its last checkpoint are done again.
            self._writer = self._open(str(self._folder), purge_step=event.step + 1 if event.step else None)
        elif isinstance(event, Stepped):
            self._add(event.step, "loss/train", event.loss)
            self._add(event.step, "learning rate", event.lr)
            self._add(event.step, "tokens per second", event.tokens_per_second)
            if event.grad_norm is not None:
                self._add(event.step, "gradient norm", event.grad_norm)
        elif isinstance(event, Evaluated):
            self._add(event.step, "loss/validation", event.loss)

    def close(self) -> None:
        """Write what is buffered."""
        if self._writer is not None:
            self._writer.close()

    def _add(self, step: int, name: str, value: float) -> None:
        self._writer.add_scalar(name, value, step)


def last_line(ended: Ended) -> str:
    """A finished run in one line of plain text; an interrupted one with the way to go on."""
    if ended.interrupted or ended.last_loss is None:
        at = f"interrupted at step {ended.step} of {ended.steps}"
        if ended.run is None:
            return f"{at}; nothing was kept"
        return f"{at}; go on with: relay-eps resume {ended.run}"
    parts = [f"validation loss {ended.first_loss:.2f} -> {ended.last_loss:.2f} nats/byte"]
    if ended.comparison is not None:
        ours, plain = ended.comparison.relay_tokens_per_second, ended.comparison.plain_tokens_per_second
        parts.append(f"{ours:,.0f} tokens/s relay, {plain:,.0f} plain PyTorch ({ours / plain:.2f}x)")
    elif ended.tokens_per_second is not None:
        parts.append(f"{ended.tokens_per_second:,.0f} tokens/s")
    if ended.device_peak is not None:
        parts.append(f"device peak {amount(ended.device_peak)}")
    parts.append(f"EPS {ended.eps_bytes_per_parameter:.2f} bytes/parameter")
    return "; ".join(parts)


def amount(count: int) -> str:
    """``count`` bytes for people."""
    power, unit = next((p, u) for p, u in ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes")) if count >> p or not p)
    return f"{count / 2**power:,.1f} {unit}" if power else f"{count} {unit}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
