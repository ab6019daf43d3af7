"""What the host and the EPS core agree on: registers, descriptors, records and numbers.

Made by ``python -m relay_eps_hw.interface`` from the gateware's own tables: change those. docs/registers.md says what
each means. A layout maps a name to its offset in bytes and its width in bits; fields map "place.field" to the lowest
bit and the width.
"""

from enum import IntEnum

IDENTITY = 0x53504552
VERSION = 1
ALIGNMENT = 64
LONGEST = 1073741823
STREAMS = ("g", "m", "v", "p", "wire")
SOURCES = ("g", "m", "v", "p", "wire", "descriptors", "records")
SCALARS = ("scale", "b1", "c1", "b2", "c2", "r2", "eps", "k", "s")
REGISTERS_SIZE = 4096
REGISTERS = {
    "control": (0x000, 32),
    "interrupt_enable": (0x004, 32),
    "interrupt_mask": (0x008, 32),
    "interrupt_status": (0x00C, 32),
    "batch_address": (0x010, 64),
    "count": (0x01C, 32),
    "completion_address": (0x024, 64),
    "port_0": (0x030, 64),
    "port_1": (0x03C, 64),
    "port_2": (0x048, 64),
    "port_3": (0x054, 64),
    "port_4": (0x060, 64),
    "identity": (0x100, 32),
    "version": (0x104, 32),
    "build_id": (0x108, 64),
    "capabilities": (0x110, 32),
    "limits": (0x114, 32),
    "error": (0x120, 32),
    "error_number": (0x124, 32),
    "error_address": (0x128, 64),
    "clocks_busy": (0x140, 64),
    "clocks_stalled": (0x148, 64),
    "beats_read_0": (0x150, 64),
    "beats_read_1": (0x158, 64),
    "beats_read_2": (0x160, 64),
    "beats_read_3": (0x168, 64),
    "beats_read_4": (0x170, 64),
    "beats_written_0": (0x178, 64),
    "beats_written_1": (0x180, 64),
    "beats_written_2": (0x188, 64),
    "beats_written_3": (0x190, 64),
    "beats_written_4": (0x198, 64),
    "reset": (0x1F0, 32),
}
REGISTERS_FIELDS = {
    "control.start": (0, 1),
    "control.done": (1, 1),
    "control.idle": (2, 1),
    "control.ready": (3, 1),
    "interrupt_enable.enabled": (0, 1),
    "interrupt_mask.done": (0, 1),
    "interrupt_mask.ready": (1, 1),
    "interrupt_status.done": (0, 1),
    "interrupt_status.ready": (1, 1),
    "capabilities.lanes": (0, 8),
    "capabilities.ports": (8, 4),
    "capabilities.g_formats": (12, 3),
    "capabilities.wire_formats": (15, 3),
    "capabilities.port_bytes": (18, 7),
    "limits.burst_beats": (0, 9),
    "limits.address_bits": (9, 7),
    "error.fault": (0, 8),
    "error.stream": (8, 3),
    "error.dead_ports": (16, 5),
    "reset.soft": (0, 1),
}
DESCRIPTOR_SIZE = 128
DESCRIPTOR = {
    "operation": (0x000, 32),
    "tag": (0x004, 32),
    "length": (0x008, 32),
    "pattern": (0x00C, 32),
    "g_address": (0x010, 64),
    "m_address": (0x018, 64),
    "v_address": (0x020, 64),
    "p_address": (0x028, 64),
    "wire_address": (0x030, 64),
    "scale": (0x040, 32),
    "b1": (0x044, 32),
    "c1": (0x048, 32),
    "b2": (0x04C, 32),
    "c2": (0x050, 32),
    "r2": (0x054, 32),
    "eps": (0x058, 32),
    "k": (0x05C, 32),
    "s": (0x060, 32),
}
DESCRIPTOR_FIELDS = {
    "operation.opcode": (0, 8),
    "operation.first": (8, 1),
    "operation.g_format": (16, 2),
    "operation.wire_format": (20, 2),
}
RECORD_SIZE = 64
RECORD = {
    "status": (0x000, 32),
    "tag": (0x004, 32),
    "number": (0x008, 32),
    "fault_address": (0x010, 64),
    "m_acknowledged": (0x020, 32),
    "v_acknowledged": (0x024, 32),
    "p_acknowledged": (0x028, 32),
    "wire_acknowledged": (0x02C, 32),
    "clocks": (0x030, 32),
}
RECORD_FIELDS = {
    "status.state": (0, 8),
    "status.fault": (8, 8),
    "status.nonfinite": (16, 1),
    "status.wrote": (17, 1),
    "status.stream": (20, 3),
}


class Opcode(IntEnum):
    """What a descriptor asks for. The first five are the lanes' operations, by the same numbers."""

    FOLD = 0
    APPLY = 1
    FOLD_APPLY = 2
    ACCUMULATE = 3
    FETCH = 4
    COPY = 5
    FILL = 6
    BARRIER = 7
    IDENTIFY = 8


class State(IntEnum):
    """How a descriptor ended."""

    PENDING = 0
    DONE = 1
    FAULTED = 2
    NOT_RUN = 3
    CUT_SHORT = 4


class Fault(IntEnum):
    """What went wrong."""

    NONE = 0
    READ_RESPONSE = 1
    WRITE_RESPONSE = 2
    TIMEOUT = 3
    OPCODE = 4
    LENGTH = 5
    ALIGNMENT = 6
    OVERLAP = 7
    SCALAR = 8
    FORMAT = 9
    RESET = 10
    DEAD_PORT = 11
    ADDRESS = 12


#: By operation: the streams read, and written. A first accumulate does not read m.
USES = {
    Opcode.FOLD: (("g", "m", "v"), ("m", "v")),
    Opcode.APPLY: (("m", "v", "p"), ("p", "wire")),
    Opcode.FOLD_APPLY: (("g", "m", "v", "p"), ("m", "v", "p", "wire")),
    Opcode.ACCUMULATE: (("g", "m"), ("m",)),
    Opcode.FETCH: (("p",), ("wire",)),
    Opcode.COPY: (("p",), ("wire",)),
    Opcode.FILL: ((), ("wire",)),
    Opcode.BARRIER: ((), ()),
    Opcode.IDENTIFY: ((), ("wire",)),
}
WIRE_IS_OPTIONAL = (Opcode.APPLY, Opcode.FOLD_APPLY)
WIRE_HAS_FORMAT = (Opcode.APPLY, Opcode.FOLD_APPLY, Opcode.FETCH)
