"""The registers behind ``s_axi_control``, an AXI4-Lite slave of 4 KiB.

Offsets up to the arguments are what Vitis and XRT expect of a kernel with ``ap_ctrl_hs``. Reads never stall and change
nothing, but for ``ap_done``, which that protocol clears on read. What is not listed reads as 0; writes to it, and to
what is only read, are accepted and do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from relay_eps_hw.interface.descriptors import STREAMS
from relay_eps_hw.interface.layout import Field, Layout, Place

#: Bytes of the register space.
SPACE = 4096
#: "REPS", in the order of the bytes.
IDENTITY = int.from_bytes(b"REPS", "little")
#: Changed with anything that an older host would get wrong.
VERSION = 1


class Access(str, Enum):
    """Who changes a register."""

    #: The protocol of kernels: `control.Control` knows each of its bits.
    PROTOCOL = "protocol"
    #: The host writes it; the core reads it when it is started.
    ARGUMENT = "argument"
    #: The core drives it.
    STATUS = "status"
    #: Writing 1 to a bit asks for something; it reads as whether that is still going on.
    COMMAND = "command"


@dataclass(frozen=True)
class Register(Place):
    """A place in the register space."""

    access: Access = Access.STATUS


_CONTROL = (
    Register(
        "control",
        0x00,
        "Start and state.",
        fields=(
            Field("start", 0, 1, "Write 1 to start; stays 1 until the batch is done."),
            Field("done", 1, 1, "The batch is done; cleared when it is read."),
            Field("idle", 2, 1, "Nothing runs."),
            Field("ready", 3, 1, "The next batch may be started."),
        ),
        access=Access.PROTOCOL,
    ),
    Register(
        "interrupt_enable",
        0x04,
        "Whether there are interrupts at all.",
        fields=(Field("enabled", 0, 1, "Let the interrupts below through."),),
        access=Access.PROTOCOL,
    ),
    Register(
        "interrupt_mask",
        0x08,
        "Which interrupts there are.",
        fields=(Field("done", 0, 1, "When a batch is done."), Field("ready", 1, 1, "When the next may be started.")),
        access=Access.PROTOCOL,
    ),
    Register(
        "interrupt_status",
        0x0C,
        "Which interrupts are waiting; write 1 to a bit to turn it over.",
        fields=(Field("done", 0, 1, "A batch was done."), Field("ready", 1, 1, "The next could be started.")),
        access=Access.PROTOCOL,
    ),
)

_ARGUMENTS = (
    Register("batch_address", 0x10, "Where the descriptors lie, in bytes.", words=2, access=Access.ARGUMENT),
    Register("count", 0x1C, "How many descriptors there are, 1 to 2**31 - 1.", access=Access.ARGUMENT),
    Register("completion_address", 0x24, "Where the records go, in bytes.", words=2, access=Access.ARGUMENT),
    *(
        Register(
            f"port_{number}",
            0x30 + 12 * number,
            "A buffer in the bank of this AXI port: it tells XRT how to connect the port. The core does not use it.",
            words=2,
            access=Access.ARGUMENT,
        )
        for number in range(len(STREAMS))
    ),
)

_STATUS = (
    Register("identity", 0x100, "0x53504552: the letters REPS."),
    Register("version", 0x104, "The version of this interface."),
    Register("build_id", 0x108, "Which build of the logic this is.", words=2),
    Register(
        "capabilities",
        0x110,
        "What the core was built with.",
        fields=(
            Field("lanes", 0, 8, "Lanes."),
            Field("ports", 8, 4, "AXI ports."),
            Field("g_formats", 12, 3, "Formats of gradients: a bit for each number."),
            Field("wire_formats", 15, 3, "Formats of wire copies: a bit for each number."),
            Field("port_bytes", 18, 7, "Bytes of a beat of a port."),
        ),
    ),
    Register(
        "limits",
        0x114,
        "And what it keeps to.",
        fields=(
            Field("burst_beats", 0, 9, "The longest burst, in beats."),
            Field("address_bits", 9, 7, "Bits of an address that the ports have."),
        ),
    ),
    Register(
        "error",
        0x120,
        "The first fault since the last start.",
        fields=(
            Field("fault", 0, 8, "A fault's number; 0 for none."),
            Field("stream", 8, 3, "What met it, as in a record."),
            Field("dead_ports", 16, 5, "Ports whose slave has not answered: a bit each."),
        ),
    ),
    Register("error_number", 0x124, "The place in its batch of the descriptor that had it."),
    Register("error_address", 0x128, "Where, in bytes.", words=2),
    Register("clocks_busy", 0x140, "Clocks in which a batch was running.", words=2),
    Register("clocks_stalled", 0x148, "Of these, such in which no lane took an element and one was wanted.", words=2),
    *(
        Register(f"{name}_{number}", base + 8 * number, f"Beats {verb} on this port.", words=2)
        for name, base, verb in (("beats_read", 0x150, "read"), ("beats_written", 0x178, "written"))
        for number in range(len(STREAMS))
    ),
)

_COMMANDS = (
    Register(
        "reset",
        0x1F0,
        "Ends what is running.",
        fields=(Field("soft", 0, 1, "Write 1 to drain all ports and end the batch; 1 until that is done."),),
        access=Access.COMMAND,
    ),
)

REGISTERS = Layout("registers", SPACE, (__doc__ or "").strip(), (*_CONTROL, *_ARGUMENTS, *_STATUS, *_COMMANDS))


def registers(access: Access) -> tuple[Register, ...]:
    """Those of one kind."""
    return tuple(place for place in REGISTERS if isinstance(place, Register) and place.access is access)
