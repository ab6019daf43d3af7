"""The numbers that descriptors, records and registers hold: operations, states and faults."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Code(IntEnum):
    """A number with a meaning."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code


class Opcode(Code):
    """What a descriptor asks for. The first five are the lanes' operations, by the same numbers."""

    FOLD = 0, "The gradient enters the moments: g, m, v are read; m, v written."
    APPLY = 1, "The weights move: m, v, p are read; p written, and wire where it has an address."
    FOLD_APPLY = (
        2,
        "Both in one pass: g, m, v, p are read; m, v, p written, and wire where it has an address.",
    )
    ACCUMULATE = 3, "A gradient enters the sum in m: g is read, and m unless it is the first; m written."
    FETCH = 4, "The weights in the wire format: p is read; wire written."
    COPY = 5, "Bytes as they are, whatever they hold: p is read; wire written."
    FILL = 6, "A pattern of 32 bits: wire written."
    BARRIER = 7, "Waits until every write of earlier descriptors has its response."
    IDENTIFY = 8, "Identity, version, build id, capabilities and counters, as the registers have them: wire written."


class State(Code):
    """How a descriptor ended."""

    PENDING = 0, "Never in a record the core has written: what the host clears records to."
    DONE = 1, "All of its writes have their responses."
    FAULTED = 2, "A fault was found in it; the record says which."
    NOT_RUN = 3, "A fault elsewhere in the batch; this one has written nothing."
    CUT_SHORT = 4, "A fault elsewhere in the batch ended it after it had begun to write."


class Fault(Code):
    """What went wrong."""

    NONE = 0, "Nothing went wrong."
    READ_RESPONSE = 1, "The slave answered a read with an error; the address is the burst's."
    WRITE_RESPONSE = 2, "The slave answered a write with an error; the address is the burst's."
    TIMEOUT = (
        3,
        "A slave has not answered; its port is dead until the device is reset with its interconnect.",
    )
    OPCODE = 4, "No operation has this number, or a reserved bit of the descriptor is set."
    LENGTH = 5, "The length is 0, or more elements than a section may have; or a batch's count is 2**31 or more."
    ALIGNMENT = 6, "A section, the batch or its records do not start on 64 bytes."
    OVERLAP = 7, "A section overlaps another one of its descriptor, or in part one of an earlier descriptor."
    SCALAR = 8, "A scalar is infinite, NaN, subnormal, -0, or negative where it must not be."
    FORMAT = 9, "A format has no such number."
    RESET = 10, "The host asked for a soft reset."
    DEAD_PORT = 11, "The port is dead since an earlier batch."
    ADDRESS = 12, "A section, the batch or its records go beyond the addresses that the ports have."
