"""Ctrl-C that lets the running step finish."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

#: What a shell reports for a process that SIGINT ended: 128 + 2.
EXIT_CODE = 130
_SHOW_CURSOR = b"\x1b[?25h"


class GracefulInterrupt:
    """Context manager: the first SIGINT sets `requested`, which a loop reads between steps; the second exits at once.

    The second ends the process with code 130 without unwinding, whatever it is doing: files that were being written
    stay incomplete (a checkpoint is then as if it had not been started). At the end the old handler is restored.
    Signals belong to the main thread: in any other thread, and after the block, this changes nothing.

    ``notice`` is called at the first SIGINT, between two instructions of the main thread: print a line and return. ::

        with GracefulInterrupt() as interrupt:
            while step < steps and not interrupt.requested:
                step += 1
    """

    def __init__(self, notice: Callable[[], None] | None = None) -> None:
        #: Whether SIGINT has come since the block was entered.
        self.requested = False
        self._notice = notice
        self._installed = False
        self._before: Any = None

    def __enter__(self) -> GracefulInterrupt:
        self.requested = False
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._installed:
            self._installed = False
            # None: a handler that was not set from Python, which Python cannot set again.
            signal.signal(signal.SIGINT, signal.SIG_DFL if self._before is None else self._before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            _exit_now()
        self.requested = True
        if self._notice is not None:
            self._notice()


def _exit_now() -> None:
    # A progress bar hides the terminal's cursor, and nothing else will run that shows it again.
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), _SHOW_CURSOR + b"\n")
    os._exit(EXIT_CODE)
