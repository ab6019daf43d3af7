"""The address channel of an AXI4 port, read or write: streams take turns, and an address waits in a register."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.arbiter import RoundRobin
from relay_eps_hw.core.shape import ADDRESS_BITS, Shape


class Addresses(wiring.Component):
    """Takes bursts of several streams, round robin, and holds each address until it is taken; one may enter a clock.

    Ports:
        requests (in, streams of `Shape.burst`): by stream.
        allowed (in, streams): whose bursts may enter.
        enters (out, 1): one does, in this clock; ``number`` is its stream, ``burst`` what it is.
        valid, ready, address, length: the channel, as AXI4 has it.
    """

    def __init__(self, streams: int, shape: Shape) -> None:
        self.shape = shape
        super().__init__(
            {
                "requests": In(stream.Signature(shape.burst)).array(streams),
                "allowed": In(streams),
                "enters": Out(1),
                "number": Out(range(streams)),
                "burst": Out(shape.burst),
                "valid": Out(1),
                "ready": In(1),
                "address": Out(ADDRESS_BITS),
                "length": Out(8),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.turns = turns = RoundRobin(len(self.requests))
        free = ~self.valid | self.ready
        m.d.comb += [
            turns.asks.eq(Cat(request.valid for request in self.requests) & self.allowed),
            self.enters.eq(free & turns.asks.any()),
            turns.served.eq(self.enters),
            self.number.eq(turns.number),
            self.burst.eq(Array(request.payload for request in self.requests)[turns.number]),
            *(request.ready.eq(self.enters & turns.chosen[number]) for number, request in enumerate(self.requests)),
        ]
        with m.If(self.enters):
            m.d.sync += [
                self.valid.eq(1),
                self.address.eq(Cat(Const(0, self.shape.below), self.burst.place)),
                self.length.eq(self.burst.beats - 1),
            ]
        with m.Elif(self.ready):
            m.d.sync += self.valid.eq(0)
        return m


def connect(m: Module, addresses: Addresses, port: wiring.Component, prefix: str, allowed: Value) -> None:
    """Put ``addresses`` between the requests of ``port`` and the channel AW or AR of its bus."""
    for outer, inner in zip(port.requests, addresses.requests, strict=True):
        wiring.connect(m, wiring.flipped(outer), inner)
    m.d.comb += [
        addresses.allowed.eq(allowed),
        addresses.ready.eq(getattr(port.bus, f"{prefix}ready")),
        getattr(port.bus, f"{prefix}valid").eq(addresses.valid),
        getattr(port.bus, f"{prefix}addr").eq(addresses.address),
        getattr(port.bus, f"{prefix}len").eq(addresses.length),
        *axi.constants(port.bus, prefix, addresses.shape.beat_bytes),
    ]
