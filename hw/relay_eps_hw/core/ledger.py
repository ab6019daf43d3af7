"""The descriptors in the pipeline: what each has written, and when it is complete."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.check import ENTRY
from relay_eps_hw.core.sections import LENGTH_BITS, SLOT_BITS, WRITES, progress_layout
from relay_eps_hw.core.shape import COUNT_BITS, OWNER_BITS, SLOTS, Shape
from relay_eps_hw.faults import Faults, fault

#: Bits of the clocks that a descriptor took, and of the time they are taken from.
CLOCK_BITS = 32
TIME_BITS = 40


def acknowledgement_layout(shape: Shape) -> data.StructLayout:
    """What a `WritePort` says of one stream: a burst is issued, a burst is acknowledged, and whose they are."""
    return data.StructLayout(
        {
            "issued": 1,
            "issued_owner": OWNER_BITS,
            "acknowledged": 1,
            "beats": shape.limit.bit_length(),
            "owner": OWNER_BITS,
            "last": 1,
        }
    )


def head_layout() -> data.StructLayout:
    """The oldest descriptor in the pipeline.

    Fields:
        valid (1): there is one.
        complete (1): all its writes have their responses.
        tag (32); nonfinite, wrote (1); clocks (32).
        acknowledged (2 × 30): elements of two streams of ``WRITES``.
    """
    return data.StructLayout(
        {
            "valid": 1,
            "complete": 1,
            "tag": 32,
            "nonfinite": 1,
            "wrote": 1,
            "clocks": CLOCK_BITS,
            "acknowledged": data.ArrayLayout(LENGTH_BITS, 2),
        }
    )


class Ledger(wiring.Component):
    """Keeps what is known of each descriptor in the pipeline.

    Ports:
        issue (in, 1), entry (in, `ENTRY`): a descriptor enters; there is room.
        writers (in, `acknowledgement_layout` by stream of ``WRITES``).
        nonfinite (in, 1), slot (in): as `Collect` says.
        pop (in, 1): the oldest one's record has been taken; it leaves.
        count (out): how many there are; progress (out, `progress_layout`).
        head (out, `head_layout`); later_two (in, 1): it says of the last two streams what is acknowledged.
    """

    def __init__(self, shape: Shape, *, faults: Faults | None = None) -> None:
        self._shape = shape
        self.faults = faults
        super().__init__(
            {
                "issue": In(1),
                "entry": In(ENTRY),
                "writers": In(data.ArrayLayout(acknowledgement_layout(shape), len(WRITES))),
                "nonfinite": In(1),
                "slot": In(SLOT_BITS),
                "pop": In(1),
                "count": Out(range(SLOTS + 1)),
                "progress": Out(progress_layout()),
                "head": Out(head_layout()),
                "later_two": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        next_ = Signal(OWNER_BITS)
        oldest = Signal(OWNER_BITS)
        finished = Array(Signal(len(WRITES), name=f"finished_{slot}") for slot in range(SLOTS))
        wrote = Array(Signal(name=f"wrote_{slot}") for slot in range(SLOTS))
        nonfinite = Array(Signal(name=f"nonfinite_{slot}") for slot in range(SLOTS))
        m.d.comb += [
            self.count.eq(next_ - oldest),
            self.progress.oldest.eq(oldest),
            *(self.progress.finished[slot].eq(finished[slot]) for slot in range(SLOTS)),
        ]
        kept = data.StructLayout({"entry": ENTRY, "since": TIME_BITS})
        m.submodules.kept = memory = Memory(shape=kept.size, depth=SLOTS, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        now = Signal(TIME_BITS)
        enters, head = data.View(kept, write.data), data.View(kept, read.data)
        m.d.sync += now.eq(now + 1)
        m.d.comb += [
            write.en.eq(self.issue),
            write.addr.eq(next_),
            enters.entry.eq(self.entry),
            enters.since.eq(now),
            read.addr.eq(oldest),
        ]
        with m.If(self.issue):
            m.d.sync += [
                next_.eq(next_ + 1),
                finished[next_[:SLOT_BITS]].eq(0),
                wrote[next_[:SLOT_BITS]].eq(0),
                nonfinite[next_[:SLOT_BITS]].eq(0),
            ]
        with m.If(self.pop):
            m.d.sync += oldest.eq(oldest + 1)
            # Another descriptor will have the same sequence number.
            for writer in self.progress.writers:
                with m.If(writer.owner == fault(self.faults, "ledger.numbers-again", oldest, oldest + 1)):
                    m.d.sync += writer.valid.eq(0)
        with m.If(self.nonfinite):
            m.d.sync += nonfinite[self.slot].eq(1)
        for number in range(len(WRITES)):
            self._writer(m, number, finished, wrote)
        self._head(m, oldest, head, finished, wrote, nonfinite, now)
        return m

    def _writer(self, m: Module, number: int, finished: Array, wrote: Array) -> None:
        """What the port says of one stream."""
        said, kept = self.writers[number], self.progress.writers[number]
        with m.If(said.issued):
            m.d.sync += wrote[said.issued_owner[:SLOT_BITS]].eq(1)
        with m.If(said.acknowledged):
            m.d.sync += [kept.valid.eq(1), kept.owner.eq(said.owner), kept.beats.eq(kept.beats + said.beats)]
            # The next section's count begins anew; this one's is not looked at any more.
            with m.If(fault(self.faults, "ledger.counts-on", said.last, Const(0, 1))):
                m.d.sync += kept.beats.eq(0)
            last = fault(self.faults, "ledger.first-response-finishes", said.last, said.acknowledged)
            with m.If(last):
                slot = said.owner[:SLOT_BITS]
                for place in range(SLOTS):
                    with m.If(slot == place):
                        m.d.sync += finished[place][number].eq(1)

    def _head(
        self,
        m: Module,
        oldest: Signal,
        kept: data.View,
        finished: Array,
        wrote: Array,
        nonfinite: Array,
        now: Signal,
    ) -> None:
        head, slot = self.head, oldest[:SLOT_BITS]
        done = Signal(len(WRITES))
        took = Signal(TIME_BITS)
        writes = kept.entry.writes
        m.d.comb += [
            done.eq(finished[slot]),
            head.valid.eq(self.count != 0),
            head.complete.eq(fault(self.faults, "ledger.one-stream-completes", (done & writes) == writes, done.any())),
            head.tag.eq(kept.entry.tag),
            head.nonfinite.eq(nonfinite[slot]),
            head.wrote.eq(wrote[slot]),
            took.eq(now - kept.since),
            head.clocks.eq(Mux(took[CLOCK_BITS:].any(), ~0, took[:CLOCK_BITS])),
        ]
        for number in range(2):
            self._acknowledged(m, number, oldest, kept, done)

    def _acknowledged(self, m: Module, number: int, oldest: Signal, kept: data.View, done: Signal) -> None:
        """The elements of one of the two streams that are looked at."""
        below = self._shape.below
        choices = [(self.progress.writers[at], done[at], kept.entry.writes[at]) for at in (number, number + 2)]
        writer, is_done, is_written = (
            Mux(self.later_two, Value.cast(later), Value.cast(former)) for former, later in zip(*choices, strict=True)
        )
        writer = data.View(self.progress.writers[0].shape(), writer)
        is_half = self.later_two & kept.entry.half if WRITES[number + 2] == "wire" else Const(0, 1)
        whole = Signal(COUNT_BITS, name=f"whole_{number}")
        m.d.comb += whole.eq(Mux(is_half, writer.beats << (below - 1), writer.beats << (below - 2)))
        partly = Mux(writer.valid & (writer.owner == oldest), whole, 0)
        m.d.comb += self.head.acknowledged[number].eq(Mux(is_written, Mux(is_done, kept.entry.length, partly), 0))
