"""The numbers that descriptors, records and registers hold: operations, states and faults."""

from __future__ import annotations

from enum import IntEnum


class Opcode(IntEnum):
    """What a descriptor asks for. The first five are the lanes' operations, by the same numbers."""

    #: The gradient enters the moments: g, m, v are read; m, v written.
    FOLD = 0
    #: The weights move: m, v, p are read; p written, and the wire copy where an address is given.
    APPLY = 1
    #: Both in one pass: g, m, v, p are read; m, v, p written, and the wire copy where an address is given.
    FOLD_APPLY = 2
    #: A gradient enters the sum in m: g is read, and m unless it is the first; m written.
    ACCUMULATE = 3
    #: The weights in the wire format: p is read; wire written.
    FETCH = 4
    #: Bytes as they are, whatever they hold: p is read; wire written.
    COPY = 5
    #: A pattern of 32 bits: wire written.
    FILL = 6
    #: Waits until every write of earlier descriptors has its response.
    BARRIER = 7
    #: Identity, version, build id, capabilities and counters, as the registers have them: wire written.
    IDENTIFY = 8


class State(IntEnum):
    """How a descriptor ended."""

    #: Never in a record the core has written: what the host clears records to.
    PENDING = 0
    #: All of its writes have their responses.
    DONE = 1
    #: A fault was found in it; the record says which.
    FAULTED = 2
    #: An earlier descriptor had a fault; this one has written nothing.
    NOT_RUN = 3


class Fault(IntEnum):
    """What went wrong."""

    NONE = 0
    #: The slave answered a read with an error; the address is the burst's.
    READ_RESPONSE = 1
    #: The slave answered a write with an error; the address is the burst's.
    WRITE_RESPONSE = 2
    #: A slave has not answered; its port is dead until the device is reloaded or reset with its interconnect.
    TIMEOUT = 3
    #: No operation has this number, or a reserved bit of the descriptor is set.
    OPCODE = 4
    #: The length is 0, or more elements than a section may have.
    LENGTH = 5
    #: A section does not start on 64 bytes.
    ALIGNMENT = 6
    #: A section overlaps another one of this or of an earlier descriptor in part.
    OVERLAP = 7
    #: A scalar is infinite, NaN, subnormal, -0, or negative where it must not be.
    SCALAR = 8
    #: A format has no such number.
    FORMAT = 9
    #: The host asked for a soft reset.
    RESET = 10
    #: The port is dead since an earlier batch.
    DEAD_PORT = 11
