"""How errors reach the user: one sentence on stderr and an exit code, a traceback only on demand."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer

from relay_eps.checkpoint import newest
from relay_eps.errors import RelayEpsError, RelayError
from relay_eps.interrupt import EXIT_CODE as INTERRUPTED

#: Set to 1 for tracebacks.
DEBUG_VARIABLE = "RELAY_EPS_DEBUG"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


@contextmanager
def reported(run: Path | None = None) -> Iterator[None]:
    """Turn what a user can meet into a line on stderr and exit code 1, and Ctrl-C into 130.

    Where training itself fails, a second line names the checkpoint that ``run``, its folder, still has.
    """
    try:
        yield
    except RelayEpsError as error:
        kept = newest(run) if run is not None and isinstance(error, RelayError) else None
        _stop(error, str(error), f"the last checkpoint is sound: {kept}" if kept else None)
    except (OSError, MemoryError) as error:
        # A full disk under the logs, a machine too small: not ours, and no reason for a traceback either.
        _stop(error, f"{type(error).__name__}: {error}" if str(error) else "there is not enough memory")
    except RuntimeError as error:
        # torch has no class of its own for a CPU that ran out of memory.
        if not any(words in str(error) for words in _OUT_OF_MEMORY):
            raise
        _stop(error, f"there is not enough memory: {str(error).splitlines()[0]}")
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _stop(error: BaseException, text: str, remark: str | None = None) -> None:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        raise error
    typer.echo(f"error: {text}", err=True)
    if remark is not None:
        typer.echo(remark, err=True)
    raise typer.Exit(1) from None


def show_warnings_plainly() -> None:
    """From now on warnings are a line on stderr, without a place in the code."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        print(f"warning: {message}", file=file or sys.stderr, flush=True)

    hook: Any = show
    warnings.showwarning = hook
