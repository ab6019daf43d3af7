"""Running Yosys and nextpnr."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_LINES_SHOWN = 8


def run(tool: str, *arguments: str, folder: Path) -> str:
    """What a tool prints when it works in ``folder``; Ctrl-C ends it.

    Files are to be named relative to the folder: the tools are WebAssembly and see another /tmp than the system's.
    Raises RuntimeError with the tool's last lines where it fails, and where it is missing.
    """
    beside = Path(sys.executable).with_name(tool)
    command = str(beside) if beside.exists() else shutil.which(tool)
    if command is None:
        raise RuntimeError(f"{tool} is not installed: pip install 'relay-eps[hw]'")
    done = subprocess.run([command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES_SHOWN:])
        raise RuntimeError(f"{tool} failed with status {done.returncode}:\n{last}")
    return done.stdout + done.stderr
