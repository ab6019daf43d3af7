"""Reads of what an earlier descriptor writes stay behind its write responses."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.sections import AFTER, SLOT_BITS, progress_layout
from relay_eps_hw.core.shape import COUNT_BITS, Shape
from relay_eps_hw.faults import Faults, fault


class Gate(wiring.Component):
    """Lets the bursts of a section pass, each once the write that it follows is acknowledged up to the burst's end.

    What is acknowledged only grows, so it may be looked at late: comparisons are spread over clocks.

    Ports:
        begins (in, 1): a section begins; its first burst comes in the next clock or later.
        after (in, `AFTER`): what the section that begins has to wait for.
        progress (in, `progress_layout`).
        i, o (streams of `Shape.burst`).
    """

    def __init__(self, shape: Shape, *, faults: Faults | None = None) -> None:
        self.faults = faults
        #: Beats of the section that have passed; how many may.
        self.passed = Signal(COUNT_BITS)
        self.limit = Signal(COUNT_BITS)
        bursts = stream.Signature(shape.burst)
        super().__init__(
            {
                "begins": In(1),
                "after": In(AFTER),
                "progress": In(progress_layout()),
                "i": In(bursts),
                "o": Out(bursts),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        after = Signal(AFTER)
        go, passes = Signal(), Signal()
        end = Signal(COUNT_BITS)
        m.d.comb += [
            end.eq(self.passed + self.i.payload.beats),
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & (~after.waits | go)),
            self.i.ready.eq(self.o.ready & (~after.waits | go)),
            passes.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += go.eq(self.i.valid & ~passes & (end <= fault(self.faults, "gate.open", self.limit, end)))
        with m.If(passes):
            m.d.sync += self.passed.eq(end)
        writer = self.progress.writers[after.writer]
        # Sequence numbers count to twice the slots: what is not in the pipeline is behind its oldest.
        age = Signal(len(after.owner))
        finished = self.progress.finished[after.owner[:SLOT_BITS]].bit_select(after.writer, 1)
        m.d.comb += age.eq(after.owner - self.progress.oldest)
        is_same = fault(self.faults, "gate.another-descriptors-beats", writer.owner == after.owner, writer.valid)
        with m.If(age[-1] | finished):
            m.d.sync += self.limit.eq(~0)
        with m.Elif(writer.valid & is_same):
            m.d.sync += self.limit.eq(fault(self.faults, "gate.one-beat-early", writer.beats, writer.beats + 1))
        with m.If(self.begins):
            m.d.sync += [after.eq(self.after), self.passed.eq(0), self.limit.eq(0), go.eq(0)]
        return m
