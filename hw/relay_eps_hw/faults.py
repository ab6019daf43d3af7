"""Small faults built into the logic on request, to show that the tests would notice each.

A unit marks a place with ``fault(self.faults, "add.sticky-dropped", right, wrong)``. Without `Faults` the right value
is all there is, and the Verilog does not change. With them, an input selects which one fault is active.
"""

from __future__ import annotations

from amaranth.hdl import Mux, Signal, Value

#: The value of the selecting input for which no fault is active.
NONE = 0


class Faults:
    """The faults of one design. Components of the design share the object; the top brings ``select`` out as an input.

    Attributes:
        select: which fault is active, by its place in ``names`` counted from 1; 0 (`NONE`) for none.
        names: what has been marked while the design was elaborated. Two places of one name are one fault.
    """

    def __init__(self) -> None:
        self.select = Signal(8, name="fault")
        self.names: list[str] = []

    def number(self, name: str) -> int:
        """The value of ``select`` that activates ``name``."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name) + 1


def fault(faults: Faults | None, name: str, right: Value, wrong: Value) -> Value:
    """``right``, or ``wrong`` while the fault called ``name`` is selected."""
    if faults is None:
        return right
    return Mux(faults.select == faults.number(name), wrong, right)
