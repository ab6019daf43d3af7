"""Verilator's linter, with all its warnings but those that generated Verilog cannot do without."""

from __future__ import annotations

import subprocess
from pathlib import Path

from relay_eps_sim.verilator import verilator_root

#: Why each is waived: a shared bus has bits that one user does not need; a file that holds lane and array cannot be
#: named after both; the vendors' tools want a port called interrupt, which C++ programmers are warned of.
WAIVED = ("UNUSEDSIGNAL", "DECLFILENAME", "SYMRSVDWORD")


def lint(text: str, top: str, folder: Path) -> str:
    """What the linter says of the module ``top`` in ``text``: nothing if it is clean."""
    waivers = "".join(f"lint_off -rule {rule}\n" for rule in WAIVED)
    (folder / "waivers.vlt").write_text("`verilator_config\n" + waivers)
    (folder / "top.v").write_text(text)
    root = verilator_root()
    done = subprocess.run(
        [root / "bin" / "verilator_bin", "--lint-only", "-Wall", "--top-module", top, "waivers.vlt", "top.v"],
        cwd=folder,
        env={"VERILATOR_ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    # The rest is a report of time and size.
    return "".join(line for line in (done.stdout + done.stderr).splitlines(keepends=True) if not line.startswith("- "))
