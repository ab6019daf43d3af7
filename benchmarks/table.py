"""Tables for people, as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print ``rows`` under ``head``, the first column to the left and the others to the right."""
    table = [tuple(head), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    print(f"\n{title}")
    for first, *others in table:
        cells = [first.ljust(widths[0]), *(text.rjust(w) for text, w in zip(others, widths[1:], strict=True))]
        print(("  " + "  ".join(cells)).rstrip())
