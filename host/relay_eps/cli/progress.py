"""What a person sees: a progress bar and notes on stderr, and at the end a small table on stdout."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from relay_eps.training.events import Ended, Evaluated, Event, Noted, Saved, Started, Stepped
from relay_eps.training.reports import amount

#: How much a step moves the speed that is shown.
_SMOOTHING = 0.1


class Screen:
    """Reports a run on the terminal; close it to leave the terminal as it was, after an error too."""

    def __init__(self, out: Console | None = None, err: Console | None = None) -> None:
        self._out = Console() if out is None else out
        self._err = Console(stderr=True) if err is None else err
        self._speed: float | None = None
        self._steps = 0
        self._progress = Progress(
            # Together with the text below no wider than 80 columns.
            MofNCompleteColumn(),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[now]}"),
            TimeRemainingColumn(compact=True),
            console=self._err,
            refresh_per_second=4,
            transient=True,
        )
        self._task = self._progress.add_task("steps", total=None, start=False, now="")

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, Evaluated):
            self._say(f"step {event.step:>{len(str(self._steps))}}   validation loss {event.loss:.3f} nats/byte")
        elif isinstance(event, Saved):
            self._say(f"saved {event.path}")
        elif isinstance(event, Noted):
            self._say(f"note: {event.text}", fold=True)
        else:
            self._end(event)

    def close(self) -> None:
        """Take the bar away."""
        # Stopping a bar that was never started prints empty lines.
        if self._progress.live.is_started:
            self._progress.stop()

    def _say(self, text: str, *, fold: bool = False) -> None:
        # A path must not be folded, or it cannot be copied; and a log file has no width.
        soft = not (fold and self._err.is_terminal)
        self._err.print(text, highlight=False, markup=False, soft_wrap=soft)

    def _start(self, event: Started) -> None:
        self._steps = event.steps
        self._say(f"data    {event.source}: {event.size:,} bytes in {event.files:,} files")
        self._say(f"model   {event.parameters:,} parameters in {event.layers} layers, on {event.device}")
        self._say(f"EPS     {event.eps}")
        if event.run is not None:
            self._say(f"run     {event.run}" + (f", from step {event.step}" if event.step else ""))
        self._progress.update(self._task, total=event.steps, completed=event.step)
        self._progress.start_task(self._task)
        # A bar that cannot move would be printed once, when it is of no use any more.
        if self._err.is_terminal:
            self._progress.start()

    def _step(self, event: Stepped) -> None:
        speed = event.tokens_per_second
        self._speed = speed if self._speed is None else self._speed + _SMOOTHING * (speed - self._speed)
        now = (
            f"loss {event.loss:.3f}  {self._speed:,.0f} tok/s  "
            f"device {amount(event.device_peak)}  EPS {amount(event.eps_bytes)}"
        )
        self._progress.update(self._task, completed=event.step, now=now)

    def _end(self, event: Ended) -> None:
        self.close()
        self._out.print(_summary(event), highlight=False)


def _summary(ended: Ended) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("steps", f"{ended.step:,} of {ended.steps:,} in {ended.seconds:,.0f} s")
    if ended.last_loss is not None:
        table.add_row("loss", f"{ended.last_loss:.4f} nats/byte on validation text, {ended.first_loss:.4f} before")
    if ended.tokens_per_second is not None:
        table.add_row("speed", f"{ended.tokens_per_second:,.0f} tokens/s")
    if (beside := ended.comparison) is not None:
        ours, plain = beside.relay_tokens_per_second, beside.plain_tokens_per_second
        table.add_row("plain PyTorch", f"{plain:,.0f} tokens/s, where the relay made {ours:,.0f}")
        table.add_row("", f"device peak {amount(beside.plain_device_peak)}")
    if ended.device_peak is not None:
        table.add_row("device peak", amount(ended.device_peak))
    table.add_row("EPS", f"{amount(ended.eps_bytes)}, {ended.eps_bytes_per_parameter:.2f} bytes/parameter")
    if ended.run is not None:
        table.add_row("run", ended.run)
    table.add_row("state", ended.hash)
    return table
