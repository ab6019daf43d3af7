"""What a descriptor asks of the movers, and what is known of earlier descriptors' writes."""

from __future__ import annotations

from amaranth.lib import data

from relay_eps_hw.core.shape import COUNT_BITS, OWNER_BITS, SLOTS, Shape
from relay_eps_hw.interface.descriptors import LONGEST

#: Streams by what they do, in the order of their masks.
READS = ("g", "m", "v", "p")
WRITES = ("m", "v", "p", "wire")
#: Of a section's elements.
LENGTH_BITS = LONGEST.bit_length()
SLOT_BITS = (SLOTS - 1).bit_length()

#: What a read has to wait for: a stream of ``WRITES`` of the descriptor ``owner``, if it ``waits`` at all.
AFTER = data.StructLayout({"waits": 1, "writer": 2, "owner": OWNER_BITS})


def elements_layout(length_bits: int = LENGTH_BITS) -> data.StructLayout:
    """How the bytes of a section are elements.

    Fields:
        less: how many, less one.
        half (1): they have 16 bits in memory and lie in the low halves of a row's elements; others have 32.
    """
    return data.StructLayout({"less": length_bits, "half": 1})


def order_layout(shape: Shape) -> data.StructLayout:
    """A section that is to be read or written.

    Fields:
        section: its beats.
        elements: what they hold.
        after: for a read, the write that it follows.
    """
    return data.StructLayout({"section": shape.section, "elements": elements_layout(), "after": AFTER})


def progress_layout() -> data.StructLayout:
    """How far the writes of the descriptors in the pipeline are.

    Fields:
        oldest (3): the oldest descriptor that is in the pipeline, or the next one if there is none.
        finished (slots × 4): by slot and stream of ``WRITES``: all of a section's writes have their responses.
        writers (4 × ...): by stream, whose writes were last acknowledged, and how many beats of its section, until that
            has finished.
    """
    writer = data.StructLayout({"valid": 1, "owner": OWNER_BITS, "beats": COUNT_BITS})
    return data.StructLayout(
        {
            "oldest": OWNER_BITS,
            "finished": data.ArrayLayout(len(WRITES), SLOTS),
            "writers": data.ArrayLayout(writer, len(WRITES)),
        }
    )
