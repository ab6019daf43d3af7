"""Operations through the lanes: rows of all streams come together, and results go apart again."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.check import OPERATION
from relay_eps_hw.core.scalars import SCALARS_LAYOUT
from relay_eps_hw.core.sections import READS, SLOT_BITS, WRITES
from relay_eps_hw.core.shape import COUNT_BITS, SLOTS
from relay_eps_hw.core.stage import Queue, Stage
from relay_eps_hw.core.unpack import row_layout
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.interface.codes import Opcode
from relay_eps_hw.interface.descriptors import SCALARS
from relay_eps_hw.interface.registers import Access, registers
from relay_eps_hw.lane.beat import beat_in_layout, beat_out_layout

WIDTH = 32
#: The words that an identify writes: from the first of the status registers to the last.
FIRST_WORD = registers(Access.STATUS)[0].offset // 4
WORDS = max(register.end for register in registers(Access.STATUS)) // 4 - FIRST_WORD


def bypass_layout(lanes: int) -> data.StructLayout:
    """A row that goes past the lanes; ``last`` marks the operation's last one."""
    return data.StructLayout({"row": row_layout(lanes), "last": 1})


class Feed(wiring.Component):
    """Takes the rows of an operation's streams together, and sends them to the lanes, or, bit for bit, past them.

    Ports:
        operation (in, `OPERATION`), issue (in, 1): an operation comes, in this clock; a barrier is none.
        rows (in, streams of `row_layout`): by stream of ``READS``.
        at (out): the slot whose scalars are wanted; scalars (in, `SCALARS_LAYOUT`).
        peek (out), peeked (in, 32), peeking (in, 1): registers, as `Control` shows them.
        lanes (out, stream of `beat_in_layout`), past (out, stream of `bypass_layout`).
        starved (out, 1): there is an operation, and no row of it moves.
    """

    def __init__(self, lanes: int, *, faults: Faults | None = None) -> None:
        self._count = lanes
        self.faults = faults
        super().__init__(
            {
                "operation": In(OPERATION),
                "issue": In(1),
                "rows": In(stream.Signature(row_layout(lanes))).array(len(READS)),
                "at": Out(SLOT_BITS),
                "scalars": In(SCALARS_LAYOUT),
                "peek": Out(10),
                "peeked": In(32),
                "peeking": In(1),
                "lanes": Out(stream.Signature(beat_in_layout(lanes, WIDTH))),
                "past": Out(stream.Signature(bypass_layout(lanes))),
                "starved": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.queue = queue = Queue(OPERATION, SLOTS)
        m.d.comb += [
            queue.i.payload.eq(self.operation),
            queue.i.valid.eq(self.issue & (self.operation.opcode != Opcode.BARRIER)),
        ]
        busy, now = Signal(), Signal(OPERATION)
        lane_bits = self._count.bit_length() - 1
        #: Rows after this one, and which lanes the last row fills.
        left = Signal(COUNT_BITS - lane_bits)
        tail = Signal(self._count)
        last, there, moves = Signal(), Signal(), Signal()
        mask = Signal(self._count)
        used = fault(self.faults, "feed.does-not-wait", now.reads, now.reads & 0b1110)
        m.d.comb += [
            last.eq(left == 0),
            mask.eq(Mux(last, tail, ~0)),
            there.eq(busy & ((Cat(row.valid for row in self.rows) & used) == used)),
            *(row.ready.eq(moves & now.reads[number]) for number, row in enumerate(self.rows)),
            self.at.eq(now.slot),
            self.starved.eq(busy & ~moves),
            queue.o.ready.eq(~busy),
        ]
        with m.If(~busy):
            less = queue.o.payload.less
            m.d.sync += [
                busy.eq(queue.o.valid),
                now.eq(queue.o.payload),
                left.eq(less >> lane_bits),
                tail.eq(Cat(Const(1, 1), *(less[:lane_bits] >= place for place in range(1, self._count)))),
            ]
        with m.Elif(moves):
            m.d.sync += [left.eq(left - 1), busy.eq(~last)]

        past = Signal()
        m.d.comb += past.eq(~now.in_lanes)
        m.d.comb += [
            self.lanes.valid.eq(there & ~past),
            moves.eq(Mux(past, self._past(m, there & past, now, last, busy), self.lanes.valid & self.lanes.ready)),
        ]
        self._beat(m, now, mask, last)
        return m

    def _beat(self, m: Module, now: data.View, mask: Value, last: Value) -> None:
        beat = self.lanes.payload
        m.d.comb += [
            beat.operation.eq(now.opcode),
            beat.first.eq(now.first),
            beat.last.eq(last),
            beat.g_format.eq(now.g_format),
            beat.w_format.eq(now.wire_format),
            beat.mask.eq(fault(self.faults, "feed.tail-counts", mask, Const(-1, self._count))),
            *(beat.scalars[name].eq(self.scalars[name]) for name in SCALARS),
        ]
        for lane in range(self._count):
            for number, name in enumerate(READS):
                m.d.comb += beat.elements[lane][name].eq(self.rows[number].payload[lane])

    def _past(self, m: Module, there: Value, now: data.View, last: Value, busy: Value) -> Value:
        """Rows that no lane sees; whether one moves."""
        m.submodules.stage = stage = Stage(bypass_layout(self._count))
        wiring.connect(m, stage.o, wiring.flipped(self.past))
        words = Signal(row_layout(self._count))
        filled = Signal(range(self._count + 1))
        index = Signal(range(WORDS + 1))
        is_identify = now.opcode == Opcode.IDENTIFY
        moves, full = Signal(), Signal()
        m.d.comb += [
            full.eq(filled == self._count),
            stage.i.valid.eq(there & (~is_identify | full)),
            moves.eq(stage.i.valid & stage.i.ready),
            stage.i.payload.last.eq(last),
            self.peek.eq(FIRST_WORD + index),
        ]
        for lane in range(self._count):
            element = stage.i.payload.row[lane]
            with m.Switch(now.opcode):
                with m.Case(Opcode.COPY):
                    m.d.comb += element.eq(self.rows[READS.index("p")].payload[lane])
                with m.Case(Opcode.FILL):
                    m.d.comb += element.eq(self.scalars.pattern)
                with m.Default():
                    m.d.comb += element.eq(words[lane])
        # A word a clock, in the order of the lanes; nothing beyond the registers.
        with m.If(~busy):
            m.d.sync += [filled.eq(0), index.eq(0)]
        with m.Elif(moves):
            m.d.sync += filled.eq(0)
        with m.Elif(~full & self.peeking):
            word = Mux(index == WORDS, 0, self.peeked)
            m.d.sync += [
                filled.eq(filled + 1),
                words.as_value().eq(Cat(words.as_value()[WIDTH:], word)),
                index.eq(Mux(index == WORDS, index, index + 1)),
            ]
        return moves


class Collect(wiring.Component):
    """Gives results to the streams that an operation writes, row by row, in the order of the operations.

    Ports:
        operation, issue: as for `Feed`.
        lanes (in, stream of `beat_out_layout`), past (in, stream of `bypass_layout`).
        rows (out, streams of `row_layout`): by stream of ``WRITES``.
        nonfinite (out, 1), slot (out): in a clock, that this slot's operation had a gradient that was not finite.
    """

    def __init__(self, lanes: int, *, faults: Faults | None = None) -> None:
        self._count = lanes
        self.faults = faults
        super().__init__(
            {
                "operation": In(OPERATION),
                "issue": In(1),
                "lanes": In(stream.Signature(beat_out_layout(lanes, WIDTH))),
                "past": In(stream.Signature(bypass_layout(lanes))),
                "rows": Out(stream.Signature(row_layout(lanes))).array(len(WRITES)),
                "nonfinite": Out(1),
                "slot": Out(SLOT_BITS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        kept = data.StructLayout({"writes": len(WRITES), "in_lanes": 1, "slot": SLOT_BITS})
        m.submodules.queue = queue = Queue(kept, SLOTS)
        m.d.comb += [
            *(queue.i.payload[name].eq(self.operation[name]) for name in kept.members),
            queue.i.valid.eq(self.issue & (self.operation.opcode != Opcode.BARRIER)),
        ]
        now = queue.o.payload
        there, last, moves = Signal(), Signal(), Signal()
        # Streams take a row when they can, each for itself: some hold it for as many clocks as it has beats.
        taken, takes = Signal(len(WRITES)), Signal(len(WRITES))
        missing = now.writes & ~taken & ~takes
        m.d.comb += [
            there.eq(queue.o.valid & Mux(now.in_lanes, self.lanes.valid, self.past.valid)),
            last.eq(Mux(now.in_lanes, self.lanes.payload.last, self.past.payload.last)),
            moves.eq(there & ~missing.any()),
            self.lanes.ready.eq(moves & now.in_lanes),
            self.past.ready.eq(moves & ~now.in_lanes),
            queue.o.ready.eq(moves & last),
            self.nonfinite.eq(moves & last & now.in_lanes & self.lanes.payload.nonfinite),
            self.slot.eq(now.slot),
            takes.eq(Cat(row.valid & row.ready for row in self.rows)),
        ]
        lost = fault(self.faults, "collect.row-given-twice", takes, takes & 0)
        m.d.sync += taken.eq(Mux(moves, 0, taken | lost))
        for number, name in enumerate(WRITES):
            m.d.comb += self.rows[number].valid.eq(there & now.writes[number] & ~taken[number])
            for lane in range(self._count):
                result = self.lanes.payload.elements[lane][name]
                if name == "wire":
                    result = Mux(now.in_lanes, result, self.past.payload.row[lane])
                m.d.comb += self.rows[number].payload[lane].eq(result)
        return m
