"""Descriptors, which the host writes, and completion records, which the core writes: both lie in memory."""

from __future__ import annotations

from relay_eps_hw.interface.layout import Field, Layout, Place

#: The streams of the core, in the order of their addresses and of their ports; what each is read and written for
#: depends on the operation.
STREAMS = ("g", "m", "v", "p", "wire")
#: What can meet a fault, by the number that records and registers give it: a stream, or what the core reads and writes
#: for itself.
SOURCES = (*STREAMS, "descriptors", "records")
#: The scalars of an operation, in the order of the arithmetic, as the lanes have them.
SCALARS = ("scale", "b1", "c1", "b2", "c2", "r2", "eps", "k", "s")
#: Every section, descriptor and record starts on so many bytes.
ALIGNMENT = 64
#: The most elements of a section: less than 4 GiB of fp32, which is what one buffer can have on every board.
LONGEST = (1 << 30) - 1

_MEANING = {
    "g": "The gradients' address.",
    "m": "The first moment's address, or the sum's.",
    "v": "The second moment's address.",
    "p": "The master weights' address; where a copy reads.",
    "wire": "The wire copy's address, 0 for no copy after an apply; where a copy, a fill and an identify write.",
}

DESCRIPTOR = Layout(
    "descriptor",
    128,
    "One operation on one layer. Reserved bits are 0; anything else is refused.",
    (
        Place(
            "operation",
            0x00,
            "What to do.",
            fields=(
                Field("opcode", 0, 8, "An operation's number."),
                Field("first", 8, 1, "The mini-batch's first gradient: moments decay, a sum starts."),
                Field("g_format", 16, 2, "The gradients' format: 0 fp32, 1 bf16, 2 fp16."),
                Field("wire_format", 20, 2, "The wire copy's format: 0 fp32, 1 bf16, 2 fp16."),
            ),
        ),
        Place("tag", 0x04, "Anything; it comes back in the record."),
        Place("length", 0x08, f"Elements, 1 to {LONGEST:,}; words of 32 bits of a copy, a fill and an identify."),
        Place("pattern", 0x0C, "What a fill writes."),
        *(Place(f"{name}_address", 0x10 + 8 * number, _MEANING[name], words=2) for number, name in enumerate(STREAMS)),
        *(Place(name, 0x40 + 4 * number, "A scalar: fp32 bits.") for number, name in enumerate(SCALARS)),
    ),
)

RECORD = Layout(
    "record",
    64,
    "How a descriptor ended; written after the responses of all its data.",
    (
        Place(
            "status",
            0x00,
            "How it ended, and what was found.",
            fields=(
                Field("state", 0, 8, "A state's number; the host clears it to 0 before a batch."),
                Field("fault", 8, 8, "A fault's number; 0 for none."),
                Field("nonfinite", 16, 1, "A gradient was infinite or NaN."),
                Field("wrote", 17, 1, "A write was issued: after a fault the layer is damaged."),
                Field("stream", 20, 3, f"After a fault, what met it, from 0: {', '.join(SOURCES)}."),
            ),
        ),
        Place("tag", 0x04, "As the descriptor has it; 0 where it was not read, because of a fault before it."),
        Place("number", 0x08, "The descriptor's place in its batch, from 0."),
        Place("fault_address", 0x10, "After a fault, where, in bytes.", words=2),
        *(
            Place(f"{name}_acknowledged", 0x20 + 4 * number, f"Elements of {name} whose writes have their responses.")
            for number, name in enumerate(("m", "v", "p", "wire"))
        ),
        Place("clocks", 0x30, "From when it entered the pipeline to its record; stays at the largest number."),
    ),
)
