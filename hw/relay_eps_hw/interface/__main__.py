"""``python -m relay_eps_hw.interface``, from the repository's root: write what is made of the tables.

The page docs/registers.md, and the host's constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from relay_eps_hw.interface.constants import constants
from relay_eps_hw.interface.page import page


def made() -> Mapping[str, str]:
    """The text of each file, by its path in the repository."""
    return {"docs/registers.md": page(), "host/relay_eps/fpga/interface.py": constants()}


def main() -> None:
    """Write the files."""
    for path, text in made().items():
        Path(path).write_text(text)


if __name__ == "__main__":
    main()
