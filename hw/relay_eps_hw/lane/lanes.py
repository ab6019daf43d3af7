"""N AdamA lanes behind a stream in and a stream out: one beat a clock, whatever the operations are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.delay import DelayLine
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.lane.beat import beat_in_layout, beat_out_layout, check_lanes
from relay_eps_hw.lane.buffer import Column, Occupancy
from relay_eps_hw.lane.scalars import ScalarEntry

#: Clocks from a beat's acceptance to its elements' entry into the lanes, and to `outside` being known.
ENTRY = 1
OUTSIDE_KNOWN = 2
#: Clocks that a row stays taken besides those in the lanes: counted complete, fetched, given back.
TURNAROUND = 4


class Lanes(wiring.Component):
    """``lanes`` lanes side by side, with their scalars, masks, flags and the buffer of their results.

    Ports:
        i (in, stream of `beat_in_layout`): operations, beat after beat. Scalars, formats and the operation may change
            with any beat that follows a last one; nothing is drained.
        o (out, stream of `beat_out_layout`): the results, a beat for a beat.

    A beat is accepted in every clock as long as the results are taken as fast.

    Args:
        lanes: how many; ValueError unless one of `LANE_COUNTS`.
        lane: makes one lane: a component with the ports and the ``fmt`` and ``timing`` attributes of `Lane`.
    """

    def __init__(self, lanes: int, lane: Callable[[], Any], *, faults: Faults | None = None) -> None:
        check_lanes(lanes)
        self.faults = faults
        self._lanes = [lane() for _ in range(lanes)]
        self.fmt = self._lanes[0].fmt
        self.timing = self._lanes[0].timing
        self.latency = ENTRY + self.timing.wire
        #: Rows of the buffer: a power of two that covers every beat between acceptance and hand-over.
        self.rows = 1 << (self.latency + TURNAROUND - 1).bit_length()
        #: What earlier beats of the operation had found: a gradient not finite, a scalar outside the contract.
        self.earlier = Signal(2)
        super().__init__(
            {
                "i": In(stream.Signature(beat_in_layout(lanes, self.fmt.width))),
                "o": Out(stream.Signature(beat_out_layout(lanes, self.fmt.width))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.occupancy = occupancy = Occupancy(self.rows, self.faults)
        accepted = Signal()
        m.d.comb += [
            self.i.ready.eq(occupancy.room),
            accepted.eq(self.i.valid & self.i.ready),
            occupancy.accept.eq(accepted),
            occupancy.ready.eq(self.o.ready),
            self.o.valid.eq(occupancy.valid),
        ]
        self._entry(m)
        # held[k]: a beat was accepted k clocks ago.
        held = _history(m, accepted, self.latency)
        m.d.comb += occupancy.complete.eq(held[self.latency])
        for name in ("m", "v", "p", "wire"):
            outputs = [getattr(lane, f"o_{name}") for lane in self._lanes]
            at = ENTRY + getattr(self.timing, name)
            column = self._column(m, name, Cat(outputs), held[at], occupancy)
            for number in range(len(self._lanes)):
                m.d.comb += self.o.payload.elements[number][name].eq(column.word_select(number, self.fmt.width))
        self._control(m, held, occupancy)
        return m

    def _entry(self, m: Module) -> None:
        """Registers before the lanes, and the scalars' way to the clock in which each lane samples them."""
        beat = self.i.payload
        m.submodules.scalars = scalars = ScalarEntry(self.fmt, self.faults)
        m.d.comb += [
            scalars.operation.eq(beat.operation),
            scalars.first.eq(beat.first),
            scalars.i.eq(beat.scalars),
        ]
        g_format = Signal(2, reset_less=True)
        w_format = Signal(2, reset_less=True)
        m.d.sync += [g_format.eq(beat.g_format), w_format.eq(beat.w_format)]
        # A gradient that is not used is -0 in any format's bits only as fp32.
        with m.If(scalars.no_g):
            m.d.sync += g_format.eq(0)

        late: dict[str, Value] = {}
        for name, clock in self.timing.scalars.items():
            late[name] = self._late(m, name, scalars.o[name], clock)
        late["w_format"] = self._late(m, "w_format", w_format, self.timing.w_format)
        for number, lane in enumerate(self._lanes):
            m.submodules[f"lane_{number}"] = lane
            element = beat.elements[number]
            entry = {name: Signal(self.fmt.width, name=f"{name}_{number}", reset_less=True) for name in "gmvp"}
            m.d.sync += [entry[name].eq(element[name]) for name in "gmvp"]
            with m.If(scalars.no_g):
                m.d.sync += entry["g"].eq(self.fmt.negative_zero)
            with m.If(scalars.no_m):
                m.d.sync += entry["m"].eq(self.fmt.negative_zero)
            with m.If(scalars.no_v):
                m.d.sync += [entry["v"].eq(0), entry["m"].eq(0)]
            m.d.comb += [getattr(lane, name).eq(signal) for name, signal in (entry | late).items()]
            m.d.comb += lane.g_format.eq(g_format)

    def _late(self, m: Module, name: str, value: Value, clocks: int) -> Value:
        """``value`` in a later clock."""
        m.submodules[f"late_{name}"] = line = DelayLine(len(value), clocks)
        m.d.comb += line.i.eq(value)
        if self.faults is None:
            return line.o
        too_late = Signal.like(line.o)
        m.d.sync += too_late.eq(line.o)
        return fault(self.faults, f"lanes.{name}-a-clock-late", line.o, too_late)

    def _control(self, m: Module, held: list[Value], occupancy: Occupancy) -> None:
        """The column of what belongs to a whole beat: last, mask, and the flags of the operation so far."""
        beat, out = self.i.payload, self.o.payload
        known = ENTRY + self.timing.nonfinite
        m.submodules.late_control = line = DelayLine(1 + len(beat.mask), known)
        m.submodules.late_outside = late_outside = DelayLine(1, known - OUTSIDE_KNOWN)
        m.d.comb += [
            line.i.eq(Cat(beat.last, beat.mask)),
            late_outside.i.eq(m.submodules.scalars.outside),
        ]
        flags = Cat(lane.nonfinite for lane in self._lanes)
        counted = fault(self.faults, "lanes.mask-ignored", flags & line.o[1:], flags)
        last_and_mask = Signal.like(line.o, reset_less=True)
        found = Signal(2, reset_less=True)
        m.d.sync += [last_and_mask.eq(line.o), found.eq(Cat(counted.any(), late_outside.o))]

        # In the next clock: what earlier beats of the operation had found stays found, until its last beat has passed.
        sticky = Signal(2)
        m.d.comb += sticky.eq(found | self.earlier)
        here = held[known + 1]
        last = fault(self.faults, "lanes.flags-never-cleared", last_and_mask[0], last_and_mask[0] & 0)
        with m.If(here):
            m.d.sync += self.earlier.eq(Mux(last, 0, sticky))
        column = self._column(m, "control", Cat(last_and_mask, sticky), here, occupancy)
        m.d.comb += Cat(out.last, out.mask, out.nonfinite, out.outside).eq(column)

    def _column(self, m: Module, name: str, value: Value, write: Value, occupancy: Occupancy) -> Value:
        m.submodules[f"column_{name}"] = column = Column(len(value), self.rows)
        m.d.comb += [
            column.data.eq(value),
            column.write.eq(write),
            column.fetch.eq(occupancy.fetch),
            column.advance.eq(occupancy.advance),
        ]
        return column.o


def _history(m: Module, now: Value, clocks: int) -> list[Value]:
    """``now`` as it was 0 to ``clocks`` clocks ago; low before reset."""
    past = Signal(clocks)
    m.d.sync += past.eq(Cat(now, past))
    return [now, *past]
