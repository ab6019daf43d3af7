"""The data of write bursts: as many beats as were asked for, the last one marked, from the stream whose burst it is."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.faults import Faults, fault


def beat_layout(beat_bytes: int) -> data.StructLayout:
    """A beat to be written.

    Fields:
        data (8 * beat_bytes), strobes (beat_bytes): a bit for each byte that is to be written.
    """
    return data.StructLayout({"data": 8 * beat_bytes, "strobes": beat_bytes})


def burst_data_layout(streams: int, limit: int) -> data.StructLayout:
    """A burst whose data is to be sent.

    Fields:
        number: its stream.
        beats: how many, 1 to ``limit``.
    """
    return data.StructLayout({"number": max(streams - 1, 1).bit_length(), "beats": limit.bit_length()})


class WriteData(wiring.Component):
    """Sends the beats of bursts, burst after burst without a gap, through a register.

    Ports:
        bursts (in, stream of `burst_data_layout`): in the order of their addresses; one goes with its last beat.
        beats (in, streams of `beat_layout`): by stream.
        void (in, streams): beats of this stream's bursts go out without strobes, whether their data is there or not;
            none is taken.
        o (out, stream): data, strobes and last (1).
    """

    def __init__(self, streams: int, beat_bytes: int, limit: int, *, faults: Faults | None = None) -> None:
        self.streams = streams
        self.limit = limit
        self.faults = faults
        beat = beat_layout(beat_bytes)
        #: How many beats of the first burst have been taken.
        self.taken = Signal(limit.bit_length())
        super().__init__(
            {
                "bursts": In(stream.Signature(burst_data_layout(streams, limit))),
                "beats": In(stream.Signature(beat)).array(streams),
                "void": In(streams),
                "o": Out(stream.Signature(data.StructLayout({**beat.members, "last": 1}))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        burst = self.bursts.payload
        free, enters, last, void = Signal(), Signal(), Signal(), Signal()
        chosen = Array(beats.payload for beats in self.beats)[burst.number]
        there = Array(beats.valid for beats in self.beats)[burst.number]
        ends = self.taken + 1 == burst.beats
        m.d.comb += [
            void.eq(self.void.bit_select(burst.number, 1)),
            free.eq(~self.o.valid | self.o.ready),
            last.eq(fault(self.faults, "write.last-a-beat-late", ends, self.taken == burst.beats)),
            enters.eq(self.bursts.valid & (there | void) & free),
            self.bursts.ready.eq(enters & last),
            *(beats.ready.eq(enters & ~void & (burst.number == number)) for number, beats in enumerate(self.beats)),
        ]
        with m.If(enters):
            m.d.sync += [
                self.o.valid.eq(1),
                self.o.payload.data.eq(chosen.data),
                self.o.payload.strobes.eq(chosen.strobes & ~void.replicate(len(chosen.strobes))),
                self.o.payload.last.eq(last),
                self.taken.eq(self.taken + 1),
            ]
            with m.If(last):
                m.d.sync += self.taken.eq(0)
        with m.Elif(fault(self.faults, "write.beat-not-held", self.o.ready, self.o.valid)):
            m.d.sync += self.o.valid.eq(0)
        return m
