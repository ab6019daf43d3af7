"""The sections of the descriptors in the pipeline, in blocks of 64 bytes."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.sections import SLOT_BITS
from relay_eps_hw.core.shape import SLOTS
from relay_eps_hw.interface.descriptors import ALIGNMENT, STREAMS

#: Bits of an address within a block.
BLOCK_BITS = (ALIGNMENT - 1).bit_length()
STREAM_BITS = (len(STREAMS) - 1).bit_length()
#: An entry's place in the table: ``slot`` above ``stream``.
INDEX = data.StructLayout({"stream": STREAM_BITS, "slot": SLOT_BITS})


def entry_layout(address_bits: int) -> data.StructLayout:
    """A section.

    Fields:
        first, last: its first and last block.
        used (1), written (1): whether the operation uses it at all, and writes it.
    """
    block = address_bits - BLOCK_BITS
    return data.StructLayout({"first": block, "last": block, "used": 1, "written": 1})


class Table(wiring.Component):
    """A section for each stream of each slot; read within the clock.

    Ports:
        index (in, `INDEX`), write (in, 1), entry (in, `entry_layout`).
        at (in, `INDEX`), o (out, `entry_layout`).
    """

    def __init__(self, address_bits: int) -> None:
        entry = entry_layout(address_bits)
        super().__init__({"index": In(INDEX), "write": In(1), "entry": In(entry), "at": In(INDEX), "o": Out(entry)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = len(self.entry.as_value())
        m.submodules.memory = memory = Memory(shape=width, depth=SLOTS << STREAM_BITS, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(self.index),
            write.data.eq(self.entry),
            write.en.eq(self.write),
            read.addr.eq(self.at),
            self.o.eq(read.data),
        ]
        return m
