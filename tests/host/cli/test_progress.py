"""What a person sees of a run."""

from __future__ import annotations

import io
import re

from rich.console import Console

from relay_eps.cli.progress import Screen
from relay_eps.training.events import Compared, Ended, Evaluated, Noted, Saved, Started, Stepped

STARTED = Started("runs/001", 0, 700, 875264, 6, "software (avx2)", "cpu", 64, "[my] text", 1, 9999, "abc", {})
ENDED = Ended(
    700, 700, False, "runs/001", 5.56, 2.31, 9000.0, Compared(1.0, 2.0, 3), 2**24, 2**23, 12.0, 90.0, "fe" * 32
)


def shown(terminal: bool) -> tuple[str, str]:
    """Standard output and error of a run, 80 columns wide."""
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(Console(file=out, width=80), Console(file=err, width=80, force_terminal=terminal))
    for event in (
        STARTED,
        Evaluated(0, 5.56),
        Stepped(1, 5.5, 0.1, 12345.0, False, None, 2**24, 2**23),
        Noted("[take] note" + " of this" * 12),
        Saved(1, "runs/001/step-00000001"),
        ENDED,
    ):
        screen(event)
    screen.close()
    return out.getvalue(), err.getvalue()


def test_a_log_file_gets_lines_and_no_bar():
    out, err = shown(terminal=False)
    assert "\x1b" not in out + err
    assert err.splitlines() == [
        "data    [my] text: 9,999 bytes in 1 files",
        "model   875,264 parameters in 6 layers, on cpu",
        "EPS     software (avx2)",
        "run     runs/001",
        "step   0   validation loss 5.560 nats/byte",
        "note: [take] note" + " of this" * 12,
        "saved runs/001/step-00000001",
    ]
    assert "fe" * 32 in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_terminal_gets_a_bar_with_loss_speed_and_memory():
    _, err = shown(terminal=True)
    for part in ("1/700", "loss 5.500", "12,345 tok/s", "device 16.0 MiB", "EPS 8.0 MiB"):
        assert part in err


def test_on_a_terminal_notes_are_folded_between_words():
    _, err = shown(terminal=True)
    assert re.search(r"(of|this) *\n *(of|this)", err)
