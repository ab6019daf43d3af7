"""Completion records: one for each descriptor, in order, into memory."""

from __future__ import annotations

from dataclasses import replace

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.ledger import head_layout
from relay_eps_hw.core.movers import WriteMover
from relay_eps_hw.core.pack import Pack
from relay_eps_hw.core.sections import WRITES
from relay_eps_hw.core.shape import OWNER_BITS, Shape
from relay_eps_hw.core.supervisor import NUMBER_BITS, fault_layout
from relay_eps_hw.core.words import WORD_BITS, WORD_LANES, bits_of
from relay_eps_hw.core.write_data import beat_layout
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.interface.codes import State
from relay_eps_hw.interface.descriptors import RECORD
from relay_eps_hw.interface.layout import Place

WORDS = RECORD.size * 8 // WORD_BITS
#: Records without a response: within the sequence numbers, so a fault's owner says which one it was.
UNDER_WAY = 4


class Recorder(wiring.Component):
    """Writes the record of each descriptor that is complete, or, in a report, of every one as it is.

    Ports:
        address (in, place bits), count (in, 32): where the records go, and how many.
        report (in, 1), stopped (in, 1): begin no more.
        fault (in, `fault_layout`): for its descriptor's record; refused_tag (in, 32): the tag, if it was refused.
        head (in, `head_layout`), pop (out, 1): the oldest descriptor in the pipeline, and that its record is written.
        later_two (out, 1): as `Ledger` has it.
        number (out, 32): the next record's.
        quiet (out, 1): none is under way.
        request, beats: to a `WritePort`; acknowledged (in, 1): a record has its response.
    """

    def __init__(self, shape: Shape, *, faults: Faults | None = None) -> None:
        self._shape = shape
        self.faults = faults
        super().__init__(
            {
                "address": In(shape.place_bits),
                "count": In(NUMBER_BITS),
                "report": In(1),
                "stopped": In(1),
                "fault": In(fault_layout(shape.address_bits)),
                "refused_tag": In(32),
                "later_two": Out(1),
                "head": In(head_layout()),
                "pop": Out(1),
                "number": Out(NUMBER_BITS),
                "quiet": Out(1),
                "request": Out(stream.Signature(shape.burst)),
                "beats": Out(stream.Signature(beat_layout(shape.beat_bytes))),
                "acknowledged": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beats, less = RECORD.size // self._shape.beat_bytes, RECORD.size // 4 - 1
        rows = max(self._shape.limit, UNDER_WAY * beats)
        shape = replace(self._shape, count_bits=beats.bit_length())
        m.submodules.mover = mover = WriteMover(shape, rows, faults=self.faults)
        m.submodules.pack = pack = Pack(shape.beat_bytes, WORD_LANES, half=False, length_bits=less.bit_length())
        index = Signal(range(WORDS))
        place = Signal(self._shape.place_bits)
        unanswered = Signal(range(UNDER_WAY + 1))
        begins, ends = Signal(), Signal()
        m.d.comb += [
            pack.sections.valid.eq(1),
            pack.sections.payload.less.eq(less),
            pack.i.payload.as_value().eq(self._word(m, index)),
            mover.sections.payload.place.eq(self.address + place),
            mover.sections.payload.final.eq(mover.sections.payload.place + beats - 1),
            mover.sections.payload.owner.eq(self.number[:OWNER_BITS]),
        ]
        wiring.connect(m, pack.o, mover.i)
        wiring.connect(m, mover.request, wiring.flipped(self.request))
        wiring.connect(m, mover.beats, wiring.flipped(self.beats))
        with m.FSM():
            with m.State("REST"):
                complete = self.head.valid & self.head.complete
                left = self.report & (self.number != self.count)
                m.d.comb += begins.eq((complete | left) & (unanswered != UNDER_WAY) & ~self.stopped)
                m.d.comb += self.quiet.eq((unanswered == 0) & ~begins)
                with m.If(begins):
                    m.next = "WORDS"
            with m.State("WORDS"):
                m.d.comb += pack.i.valid.eq(1)
                with m.If(pack.i.ready):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index.all()):
                        m.next = "SECTION"
            with m.State("SECTION"):
                m.d.comb += mover.sections.valid.eq(1)
                with m.If(mover.sections.ready):
                    m.d.comb += [ends.eq(1), self.pop.eq(self.head.valid)]
                    m.d.sync += [self.number.eq(self.number + 1), place.eq(place + beats)]
                    m.next = "REST"
        m.d.sync += unanswered.eq(unanswered + ends - self.acknowledged)
        return m

    def _word(self, m: Module, index: Signal) -> Value:
        """The word of the record at ``index``."""
        head, fault_ = self.head, self.fault
        is_faulted = Signal()
        state, status, word = Signal(8), Signal(32), Signal(WORD_BITS)
        m.d.comb += is_faulted.eq(self.report & fault_.found & (self.number == fault_.number))
        with m.If(is_faulted):
            m.d.comb += state.eq(State.FAULTED)
        with m.Elif(head.valid & head.complete):
            m.d.comb += state.eq(State.DONE)
        with m.Elif(head.valid & fault(self.faults, "recorder.never-cut-short", head.wrote, Const(0, 1))):
            m.d.comb += state.eq(State.CUT_SHORT)
        with m.Else():
            m.d.comb += state.eq(State.NOT_RUN)
        values: dict[str, Value] = {
            "state": state,
            "fault": Mux(is_faulted, fault_.code, 0),
            "nonfinite": head.valid & head.nonfinite,
            "wrote": head.valid & head.wrote,
            "stream": Mux(is_faulted, fault_.source, 0),
        }
        m.d.comb += [bits_of(status, field).eq(values[field.name]) for field in RECORD["status"].fields]
        places: dict[str, Value] = {
            "status": status,
            "tag": Mux(head.valid, head.tag, Mux(is_faulted & fault_.refused, self.refused_tag, 0)),
            "number": self.number,
            "fault_address": Mux(is_faulted, fault_.address, 0),
            "clocks": Mux(head.valid, head.clocks, 0),
        }
        for number, name in enumerate(WRITES):
            places[f"{name}_acknowledged"] = Mux(head.valid, head.acknowledged[number % 2], 0)
        # What is acknowledged comes in two words, one after another.
        m.d.comb += self.later_two.eq(index == RECORD["p_acknowledged"].offset * 8 // WORD_BITS)
        with m.Switch(index):
            for at in range(WORDS):
                with m.Case(at):
                    for place in RECORD:
                        m.d.comb += _part_of(word, at, place, places[place.name])
        return word


def _part_of(word: Signal, at: int, place: Place, value: Value) -> list[object]:
    """What of a place lies in the word at ``at``."""
    low = 8 * place.offset - WORD_BITS * at
    return [word[low : low + place.width].eq(value)] if 0 <= low < WORD_BITS else []
