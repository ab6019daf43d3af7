"""When a burst may be asked for: a read when its data has room, a write when all its data is there.

So a port never waits, in the middle of a burst, for the other end of a stream: whoever shares it is not held up.
"""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.shape import Shape
from relay_eps_hw.faults import Faults, fault


class Credit(wiring.Component):
    """Lets bursts pass for which there is credit, in their order; each takes as much as it has beats.

    Ports:
        i, o (streams of `Shape.burst`): a burst passes at once, or waits.
        more (in, 1): one beat of credit comes.

    Attributes:
        credit: beats of it.

    Args:
        rows: the beats of the queue behind the stream; ValueError unless it holds the longest burst.
        first: the credit at reset.
    """

    def __init__(self, shape: Shape, rows: int, *, first: int, faults: Faults | None = None) -> None:
        if rows < shape.limit:
            raise ValueError(f"a queue of {rows} beats never holds a burst of {shape.limit}: use {shape.limit} or more")
        self.rows = rows
        self.limit = shape.limit
        self.faults = faults
        self.credit = Signal(range(rows + 1), init=first)
        bursts = stream.Signature(shape.burst)
        super().__init__({"i": In(bursts), "o": Out(bursts), "more": In(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beats = self.i.payload.beats
        enough = Signal()
        m.d.comb += [
            enough.eq(fault(self.faults, "credit.one-beat-short", self.credit >= beats, self.credit + 1 >= beats)),
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & enough),
            self.i.ready.eq(self.o.ready & enough),
        ]
        spent: Value = fault(self.faults, "credit.not-spent", beats, beats - 1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += self.credit.eq(self.credit - spent + self.more)
        with m.Else():
            m.d.sync += self.credit.eq(self.credit + self.more)
        return m


def read_credit(shape: Shape, rows: int, *, faults: Faults | None = None) -> Credit:
    """For reads into a queue of ``rows`` beats: ``more`` is a beat that leaves the queue."""
    return Credit(shape, rows, first=rows, faults=faults)


def write_credit(shape: Shape, rows: int, *, faults: Faults | None = None) -> Credit:
    """For writes out of a queue of ``rows`` beats: ``more`` is a beat that enters the queue."""
    return Credit(shape, rows, first=0, faults=faults)
