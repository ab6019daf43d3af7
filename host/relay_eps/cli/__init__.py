"""The command line, ``relay-eps``. Commands are in `app`; this module is light, so that it can say what is missing."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line with the process's arguments; exits with 0, 1 (an error), 2 (usage) or 130 (Ctrl-C)."""
    _spin_less()
    try:
        from relay_eps.cli import app
    except ModuleNotFoundError as error:
        # The doctor must be able to say what is missing on a board that has numpy and nothing else.
        if sys.argv[1:2] == ["doctor"] and error.name in ("typer", "rich"):
            from relay_eps import doctor

            sys.exit(doctor.main(sys.argv[2:]))
        sys.exit(f"error: the command line needs {error.name}: pip install {error.name} (only `doctor` works without)")
    except KeyboardInterrupt:
        # Loading takes a moment, and nothing has begun.
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    app.run()


def _spin_less() -> None:
    """Keep torch's idle threads from burning the cores that the EPS, or anybody else, could use.

    GNU OpenMP lets a waiting thread spin for milliseconds; where cores are shared a step then takes many times as long.
    It is read when torch is loaded, and left alone where the user has set either variable.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
