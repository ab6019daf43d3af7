"""A stream of the core, from its sections to rows of the lanes, or back: a mover, and between beats and rows."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.movers import ReadMover, WriteMover
from relay_eps_hw.core.pack import Pack
from relay_eps_hw.core.sections import AFTER, elements_layout, order_layout, progress_layout
from relay_eps_hw.core.shape import SLOTS, Shape
from relay_eps_hw.core.stage import Queue
from relay_eps_hw.core.unpack import Unpack, row_layout
from relay_eps_hw.core.write_data import beat_layout
from relay_eps_hw.faults import Faults


class ReadStream(wiring.Component):
    """Sections in their order as rows of the lanes.

    Ports:
        order (in, `order_layout`), ordered (in, 1): a section comes, in this clock. There is room for one of each
            descriptor in the pipeline.
        progress (in, `progress_layout`).
        request, valid, beat: to and from a `ReadPort`, as `ReadMover` has them.
        o (out, stream of `row_layout`).

    Args:
        rows: beats that the queue holds.
        half: elements may have 16 bits.
    """

    def __init__(self, shape: Shape, lanes: int, rows: int, *, half: bool, faults: Faults | None = None) -> None:
        self._mover = ReadMover(shape, rows, hazards=True, faults=faults)
        self._unpack = Unpack(shape.beat_bytes, lanes, half=half, faults=faults)
        self._asked = data.StructLayout({"section": shape.section, "after": AFTER})
        super().__init__(
            {
                "order": In(order_layout(shape)),
                "ordered": In(1),
                "progress": In(progress_layout()),
                "request": Out(stream.Signature(shape.burst)),
                "valid": In(1),
                "beat": In(shape.beat_bits),
                "o": Out(stream.Signature(row_layout(lanes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.mover = mover = self._mover
        m.submodules.unpack = unpack = self._unpack
        m.submodules.sections = sections = Queue(self._asked, SLOTS)
        m.submodules.elements = elements = Queue(elements_layout(), SLOTS)
        m.d.comb += [
            *(sections.i.payload[name].eq(self.order[name]) for name in self._asked.members),
            elements.i.payload.eq(self.order.elements),
            *(queue.i.valid.eq(self.ordered) for queue in (sections, elements)),
            mover.sections.payload.eq(sections.o.payload.section),
            mover.after.eq(sections.o.payload.after),
            mover.sections.valid.eq(sections.o.valid),
            sections.o.ready.eq(mover.sections.ready),
        ]
        wiring.connect(m, elements.o, unpack.sections)
        wiring.connect(m, mover.o, unpack.i)
        wiring.connect(m, unpack.o, wiring.flipped(self.o))
        wiring.connect(m, mover.request, wiring.flipped(self.request))
        m.d.comb += [
            mover.progress.eq(self.progress),
            mover.valid.eq(self.valid),
            mover.beat.eq(self.beat),
        ]
        return m


class WriteStream(wiring.Component):
    """Rows of the lanes into sections, in their order.

    Ports:
        order (in, `order_layout`), ordered (in, 1): as for `ReadStream`.
        i (in, stream of `row_layout`).
        request, beats: to a `WritePort`, as `WriteMover` has them.

    Args:
        rows, half: as for `ReadStream`.
    """

    def __init__(self, shape: Shape, lanes: int, rows: int, *, half: bool, faults: Faults | None = None) -> None:
        self._mover = WriteMover(shape, rows, faults=faults)
        self._pack = Pack(shape.beat_bytes, lanes, half=half, faults=faults)
        self._section = shape.section
        super().__init__(
            {
                "order": In(order_layout(shape)),
                "ordered": In(1),
                "i": In(stream.Signature(row_layout(lanes))),
                "request": Out(stream.Signature(shape.burst)),
                "beats": Out(stream.Signature(beat_layout(shape.beat_bytes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.mover = mover = self._mover
        m.submodules.pack = pack = self._pack
        m.submodules.sections = sections = Queue(self._section, SLOTS)
        m.submodules.elements = elements = Queue(elements_layout(), SLOTS)
        for queue, payload in ((sections, self.order.section), (elements, self.order.elements)):
            m.d.comb += [queue.i.payload.eq(payload), queue.i.valid.eq(self.ordered)]
        wiring.connect(m, sections.o, mover.sections)
        wiring.connect(m, elements.o, pack.sections)
        wiring.connect(m, wiring.flipped(self.i), pack.i)
        wiring.connect(m, pack.o, mover.i)
        wiring.connect(m, mover.request, wiring.flipped(self.request))
        wiring.connect(m, mover.beats, wiring.flipped(self.beats))
        return m
