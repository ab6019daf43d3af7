"""Movers: sections into bursts, with a queue of beats between the port and the lanes."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.bursts import Bursts
from relay_eps_hw.core.credit import read_credit, write_credit
from relay_eps_hw.core.gate import Gate
from relay_eps_hw.core.sections import AFTER, progress_layout
from relay_eps_hw.core.shape import Shape
from relay_eps_hw.core.stage import Stage
from relay_eps_hw.core.write_data import beat_layout
from relay_eps_hw.faults import Faults


class ReadMover(wiring.Component):
    """Asks for sections, one after another, as far as the queue of beats has room, and hands over what comes.

    Ports:
        sections (in, stream of `Shape.section`), after (in, `AFTER`): what the section offered has to wait for.
        progress (in, `progress_layout`).
        request (out, stream of `Shape.burst`): to a `ReadPort`.
        valid (in, 1), beat (in): from it.
        o (out, stream of beats).

    Args:
        rows: beats that the queue holds.
        hazards: sections may have something to wait for; without, ``after`` and ``progress`` are not used.
    """

    def __init__(self, shape: Shape, rows: int, *, hazards: bool, faults: Faults | None = None) -> None:
        self._shape = shape
        self._rows = rows
        self._hazards = hazards
        self._faults = faults
        super().__init__(
            {
                "sections": In(stream.Signature(shape.section)),
                "after": In(AFTER),
                "progress": In(progress_layout()),
                "request": Out(stream.Signature(shape.burst)),
                "valid": In(1),
                "beat": In(shape.beat_bits),
                "o": Out(stream.Signature(shape.beat_bits)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.bursts = bursts = Bursts(self._shape, faults=self._faults)
        m.submodules.stage = stage = Stage(self._shape.burst)
        m.submodules.allowance = credit = read_credit(self._shape, self._rows, faults=self._faults)
        m.submodules.queue = queue = SyncFIFOBuffered(width=self._shape.beat_bits, depth=self._rows)
        wiring.connect(m, wiring.flipped(self.sections), bursts.i)
        planned = bursts.o
        if self._hazards:
            m.submodules.gate = gate = Gate(self._shape, faults=self._faults)
            wiring.connect(m, planned, gate.i)
            m.d.comb += [
                gate.begins.eq(self.sections.valid & self.sections.ready),
                gate.after.eq(self.after),
                gate.progress.eq(self.progress),
            ]
            planned = gate.o
        wiring.connect(m, planned, stage.i)
        wiring.connect(m, stage.o, credit.i)
        wiring.connect(m, credit.o, wiring.flipped(self.request))
        m.d.comb += [
            queue.w_data.eq(self.beat),
            queue.w_en.eq(self.valid),
            self.o.payload.eq(queue.r_data),
            self.o.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.o.ready),
            credit.more.eq(self.o.valid & self.o.ready),
        ]
        return m


class WriteMover(wiring.Component):
    """Asks to write sections, one after another, each burst as soon as all its beats are in the queue.

    Ports:
        sections (in, stream of `Shape.section`).
        i (in, stream of `beat_layout`): the sections' beats.
        request (out, stream of `Shape.burst`), beats (out, stream of `beat_layout`): to a `WritePort`.

    Args:
        rows: beats that the queue holds.
    """

    def __init__(self, shape: Shape, rows: int, *, faults: Faults | None = None) -> None:
        self._shape = shape
        self._rows = rows
        self._faults = faults
        beats = stream.Signature(beat_layout(shape.beat_bytes))
        super().__init__(
            {
                "sections": In(stream.Signature(shape.section)),
                "i": In(beats),
                "request": Out(stream.Signature(shape.burst)),
                "beats": Out(beats),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.bursts = bursts = Bursts(self._shape, faults=self._faults)
        m.submodules.stage = stage = Stage(self._shape.burst)
        m.submodules.allowance = credit = write_credit(self._shape, self._rows, faults=self._faults)
        width = len(self.i.payload.as_value())
        m.submodules.queue = queue = SyncFIFOBuffered(width=width, depth=self._rows)
        wiring.connect(m, wiring.flipped(self.sections), bursts.i)
        wiring.connect(m, bursts.o, stage.i)
        wiring.connect(m, stage.o, credit.i)
        wiring.connect(m, credit.o, wiring.flipped(self.request))
        m.d.comb += [
            queue.w_data.eq(self.i.payload),
            queue.w_en.eq(self.i.valid),
            self.i.ready.eq(queue.w_rdy),
            credit.more.eq(self.i.valid & self.i.ready),
            self.beats.payload.eq(queue.r_data),
            self.beats.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.beats.ready),
        ]
        return m
