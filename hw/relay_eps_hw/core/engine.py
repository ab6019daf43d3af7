"""What carries descriptors out: it fetches and checks them, and moves their elements through the lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.check import ENTRY, Check, found_layout
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.feed import Collect, Feed
from relay_eps_hw.core.fetch import Fetch
from relay_eps_hw.core.scalars import Scalars
from relay_eps_hw.core.sections import READS, SLOT_BITS, WRITES, progress_layout
from relay_eps_hw.core.shape import SLOTS
from relay_eps_hw.core.streams import ReadStream, WriteStream
from relay_eps_hw.core.write_data import beat_layout
from relay_eps_hw.faults import Faults
from relay_eps_hw.lane.lanes import Lanes

#: The reading streams, in the order of `Engine`'s ports.
READERS = (*READS, "descriptors")


class Engine(wiring.Component):
    """The pipeline of descriptors. A reset brings it back to where it began.

    Ports:
        address (in, place bits), count (in, 31), fetching (in, 1): the batch, and whether to go on fetching.
        in_flight (in), progress (in, `progress_layout`): from the `Ledger`.
        issue, entry, nonfinite, slot (out): to it.
        found (out, `found_layout`): a descriptor's fault.
        read_requests (out, streams of `Shape.burst`), valid (in, a bit each), beats (in, a beat each): by `READERS`.
        write_requests (out, streams of `Shape.burst`), write_beats (out, streams of `beat_layout`): by ``WRITES``.
        peek, peeked, peeking: registers, as `Control` shows them.
        starved (out, 1): an operation waits for elements, or for room.

    Args:
        lane: makes one lane, as for `Lanes`.
    """

    def __init__(self, config: CoreConfig, lane: Callable[[], Any], *, faults: Faults | None = None) -> None:
        self._config = config
        self._lane = lane
        self.faults = faults
        shape = config.shape
        super().__init__(
            {
                "address": In(shape.place_bits),
                "count": In(31),
                "fetching": In(1),
                "in_flight": In(range(SLOTS + 1)),
                "progress": In(progress_layout()),
                "issue": Out(1),
                "entry": Out(ENTRY),
                "nonfinite": Out(1),
                "slot": Out(SLOT_BITS),
                "found": Out(found_layout(shape.address_bits)),
                "read_requests": Out(stream.Signature(shape.burst)).array(len(READERS)),
                "valid": In(len(READERS)),
                "beats": In(shape.beat_bits).array(len(READERS)),
                "write_requests": Out(stream.Signature(shape.burst)).array(len(WRITES)),
                "write_beats": Out(stream.Signature(beat_layout(shape.beat_bytes))).array(len(WRITES)),
                "peek": Out(10),
                "peeked": In(32),
                "peeking": In(1),
                "starved": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config, shape = self._config, self._config.shape
        m.submodules.fetch = fetch = Fetch(shape, faults=self.faults)
        m.submodules.check = check = Check(shape, faults=self.faults)
        m.submodules.scalars = scalars = Scalars()
        m.submodules.feed = feed = Feed(config.lanes, faults=self.faults)
        m.submodules.lanes = lanes = Lanes(config.lanes, self._lane, faults=self.faults)
        m.submodules.collect = collect = Collect(config.lanes, faults=self.faults)

        wiring.connect(m, fetch.o, check.i)
        wiring.connect(m, feed.lanes, lanes.i)
        wiring.connect(m, lanes.o, collect.lanes)
        wiring.connect(m, feed.past, collect.past)
        wiring.connect(m, fetch.request, wiring.flipped(self.read_requests[-1]))
        m.d.comb += [
            fetch.address.eq(self.address),
            fetch.count.eq(self.count),
            fetch.stop.eq(~self.fetching),
            fetch.valid.eq(self.valid[-1]),
            fetch.beat.eq(self.beats[-1]),
            check.going.eq(self.fetching),
            check.oldest.eq(self.progress.oldest),
            check.count.eq(self.in_flight),
            self.found.eq(check.found),
            self.issue.eq(check.issue),
            self.entry.eq(check.entry),
            scalars.write.eq(check.scalars_write),
            scalars.slot.eq(check.number),
            scalars.word.eq(check.word),
            scalars.at.eq(feed.at),
            feed.scalars.eq(scalars.o),
            *(unit.operation.eq(check.operation) for unit in (feed, collect)),
            *(unit.issue.eq(check.issue) for unit in (feed, collect)),
            self.nonfinite.eq(collect.nonfinite),
            self.slot.eq(collect.slot),
            self.peek.eq(feed.peek),
            feed.peeked.eq(self.peeked),
            feed.peeking.eq(self.peeking),
            self.starved.eq(feed.starved),
        ]
        for number, name in enumerate(READS):
            reader = ReadStream(shape, config.lanes, config.read_rows, half=name == "g", faults=self.faults)
            m.submodules[f"read_{name}"] = reader
            wiring.connect(m, reader.request, wiring.flipped(self.read_requests[number]))
            wiring.connect(m, reader.o, feed.rows[number])
            m.d.comb += [
                reader.order.eq(check.order),
                reader.ordered.eq(check.reads[number]),
                reader.progress.eq(self.progress),
                reader.valid.eq(self.valid[number]),
                reader.beat.eq(self.beats[number]),
            ]
        for number, name in enumerate(WRITES):
            writer = WriteStream(shape, config.lanes, config.write_rows, half=name == "wire", faults=self.faults)
            m.submodules[f"write_{name}"] = writer
            wiring.connect(m, collect.rows[number], writer.i)
            wiring.connect(m, writer.request, wiring.flipped(self.write_requests[number]))
            wiring.connect(m, writer.beats, wiring.flipped(self.write_beats[number]))
            m.d.comb += [writer.order.eq(check.order), writer.ordered.eq(check.writes[number])]
        return m
