"""Ctrl-C: the first lets the step finish, the second ends the process, and nothing is left behind."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from relay_eps.interrupt import GracefulInterrupt

#: Interrupts itself twice inside the block; says so if it gets further than it may.
TWICE = textwrap.dedent(
    """
    import os, signal, sys
    from relay_eps.interrupt import GracefulInterrupt
    try:
        with GracefulInterrupt(lambda: print("finishing", flush=True)) as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            print("requested", interrupt.requested, flush=True)
            os.kill(os.getpid(), signal.SIGINT)
            print("still here", flush=True)
    finally:
        print("unwound", flush=True)
    """
)


def interrupt_self() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_is_only_noted() -> None:
    notices = []
    with GracefulInterrupt(lambda: notices.append("finishing the step")) as interrupt:
        requested = [interrupt.requested]
        interrupt_self()
        requested.append(interrupt.requested)
    assert requested == [False, True]
    assert notices == ["finishing the step"]
    assert interrupt.requested


def test_the_second_interrupt_exits_at_once_with_code_130() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TWICE], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "finishing\nrequested True\n", "")


def test_the_second_interrupt_gives_the_terminal_its_cursor_back() -> None:
    here, terminal = pty.openpty()
    ran = subprocess.run(
        [sys.executable, "-c", TWICE],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    shown = os.read(here, 1000)
    os.close(here)
    assert ran.returncode == 130
    assert b"\x1b[?25h" in shown


@pytest.mark.parametrize("leave", [RuntimeError, None])
def test_the_old_handler_is_restored(leave: type[Exception] | None) -> None:
    calls = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: calls.append(signum))
    try:
        try:
            with GracefulInterrupt():
                interrupt_self()
                if leave is not None:
                    raise leave
        except RuntimeError:
            pass
        assert calls == []
        interrupt_self()
        assert calls == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_can_be_used_again_and_nested() -> None:
    interrupt = GracefulInterrupt()
    for _ in range(2):
        with interrupt:
            assert not interrupt.requested
            interrupt_self()
            assert interrupt.requested
    with GracefulInterrupt() as outer:
        with GracefulInterrupt() as inner:
            interrupt_self()
        assert (outer.requested, inner.requested) == (False, True)
        interrupt_self()
        assert outer.requested


def test_in_another_thread_it_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run() -> None:
        with GracefulInterrupt() as interrupt:
            seen.append((signal.getsignal(signal.SIGINT), interrupt.requested))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(before, False)]
    assert signal.getsignal(signal.SIGINT) is before
