"""The scalars of the descriptors in the pipeline."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.sections import SLOT_BITS
from relay_eps_hw.core.shape import SLOTS
from relay_eps_hw.interface.descriptors import SCALARS

#: Two scalars a word, as descriptors have them; and the pattern.
PAIRS = (len(SCALARS) + 1) // 2
PATTERN = PAIRS
SCALARS_LAYOUT = data.StructLayout(dict.fromkeys((*SCALARS, "pattern"), 32))


class Scalars(wiring.Component):
    """Written as a descriptor is read, two at a time; read within the clock, by slot.

    Ports:
        write (in): a bit for each of the `PAIRS` of scalars, and one for the pattern.
        slot (in), word (in, 64): what is written; the pattern is its high half.
        at (in), o (out): those of a slot.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "write": In(PAIRS + 1),
                "slot": In(SLOT_BITS),
                "word": In(64),
                "at": In(SLOT_BITS),
                "o": Out(SCALARS_LAYOUT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        halves = [(name, number // 2, number % 2) for number, name in enumerate(SCALARS)]
        for name, place, half in [*halves, ("pattern", PATTERN, 1)]:
            m.submodules[name] = memory = Memory(shape=32, depth=SLOTS, init=[])
            write, read = memory.write_port(), memory.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(self.slot),
                write.data.eq(self.word[32 * half : 32 * half + 32]),
                write.en.eq(self.write[place]),
                read.addr.eq(self.at),
                self.o[name].eq(read.data),
            ]
        return m
