"""The command line, ``relay-eps``. Commands are in `app`; this module is light, so that it can say what is missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line with the process's arguments; exits with 0, 1 (an error), 2 (usage) or 130 (Ctrl-C)."""
    try:
        from relay_eps.cli import app
    except ModuleNotFoundError as error:
        # The doctor must be able to say what is missing on a board that has numpy and nothing else.
        if sys.argv[1:2] == ["doctor"] and error.name in ("typer", "rich"):
            from relay_eps import doctor

            sys.exit(doctor.main(sys.argv[2:]))
        sys.exit(f"error: the command line needs {error.name}: pip install {error.name} (only `doctor` works without)")
    app.run()
