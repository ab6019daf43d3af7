"""Cutting a section into bursts."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.faults import Faults, fault

#: AXI's own limits: beats of a burst, and the bytes whose boundaries no burst crosses.
MOST_BEATS = 256
BOUNDARY = 4096
BEAT_BYTES = (8, 16, 32, 64)
#: Bits of an address, and of a number of beats: a section of 2**30 fp32 elements in beats of eight bytes.
ADDRESS_BITS = 64
COUNT_BITS = 30


def check_bursts(beat_bytes: int, limit: int) -> None:
    """ValueError, with those allowed, for a beat or a longest burst that no port has."""
    if beat_bytes not in BEAT_BYTES:
        allowed = ", ".join(map(str, BEAT_BYTES))
        raise ValueError(f"beats of {beat_bytes!r} bytes are not supported: use one of {allowed}")
    most = min(MOST_BEATS, BOUNDARY // beat_bytes)
    if type(limit) is not int or limit & (limit - 1) or not 1 <= limit <= most:
        raise ValueError(
            f"bursts of up to {limit!r} beats of {beat_bytes} bytes are not supported: "
            f"use a power of two from 1 to {most}, that 4 KiB hold"
        )


def place_bits(beat_bytes: int) -> int:
    """Bits of an address counted in beats."""
    return ADDRESS_BITS - (beat_bytes.bit_length() - 1)


def section_layout(beat_bytes: int) -> data.StructLayout:
    """A run of beats.

    Fields:
        place: the address of its first byte, in beats.
        beats (30): how many, at least 1.
    """
    return data.StructLayout({"place": place_bits(beat_bytes), "beats": COUNT_BITS})


def burst_layout(beat_bytes: int, limit: int) -> data.StructLayout:
    """A burst.

    Fields:
        place: the address of its first byte, in beats.
        beats: how many, 1 to ``limit``.
        last (1): it is the section's last one.
    """
    return data.StructLayout({"place": place_bits(beat_bytes), "beats": limit.bit_length(), "last": 1})


def fault_layout(streams: int, beat_bytes: int) -> data.StructLayout:
    """The first fault that a port has met.

    Fields:
        found (1): there was one; it stays until reset.
        number: the stream whose burst it was.
        place: where that burst begins, in beats.
    """
    return data.StructLayout({"found": 1, "number": max(streams - 1, 1).bit_length(), "place": place_bits(beat_bytes)})


class Bursts(wiring.Component):
    """The bursts of one section after another, a burst a clock, without a gap between sections.

    Every burst but a section's first starts at a multiple of ``limit`` beats, and none crosses one. These lie at 4 KiB
    boundaries too, so no burst crosses such a one.

    Ports:
        i (in, stream of `section_layout`), o (out, stream of `burst_layout`).

    Args:
        beat_bytes: bytes of a beat, one of `BEAT_BYTES`.
        limit: beats of the longest burst, a power of two; ValueError unless 4 KiB hold it.
    """

    def __init__(self, beat_bytes: int, limit: int, *, faults: Faults | None = None) -> None:
        check_bursts(beat_bytes, limit)
        self.beat_bytes = beat_bytes
        self.limit = limit
        self.faults = faults
        #: What is left of the section, and where that begins; nothing while ``left`` is 0.
        self.place = Signal(place_bits(beat_bytes))
        self.left = Signal(COUNT_BITS)
        super().__init__(
            {
                "i": In(stream.Signature(section_layout(beat_bytes))),
                "o": Out(stream.Signature(burst_layout(beat_bytes, limit))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self.limit.bit_length() - 1
        low, high = self.place[:bits], self.place[bits:]
        # To the next multiple of the limit.
        room = Signal(bits + 1)
        m.d.comb += room.eq(self.limit - low)
        fits = ~self.left[bits + 1 :].any() & (self.left[: bits + 1] <= room)
        last = fault(self.faults, "bursts.one-too-many", fits, fits & (self.left[: bits + 1] != room))
        beats = Mux(
            fits, self.left[: bits + 1], fault(self.faults, "bursts.not-cut", room, Const(self.limit, bits + 1))
        )
        some = self.left.any()
        m.d.comb += [
            self.o.valid.eq(some),
            self.o.payload.place.eq(self.place),
            self.o.payload.beats.eq(beats),
            self.o.payload.last.eq(last),
            self.i.ready.eq(~some | self.o.ready & fits),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [self.place.eq(self.i.payload.place), self.left.eq(self.i.payload.beats)]
        with m.Elif(self.o.ready & some):
            m.d.sync += [self.place.eq(Cat(Const(0, bits), high + 1)), self.left.eq(self.left - beats)]
        return m
