"""The faults that are built into a design on request, by name."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Elaboratable, Fragment

from relay_eps_hw.faults import Faults


def fault_names(make: Callable[..., Elaboratable]) -> list[str]:
    """Those of the design that ``make(faults=...)`` builds them into; they are known once it is elaborated."""
    faults = Faults()
    Fragment.get(make(faults=faults), None)
    return faults.names
