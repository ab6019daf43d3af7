"""The signals of AXI4-Lite and AXI4, by the names that the vendors' tools expect, as a manager has them."""

from __future__ import annotations

from typing import Any

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

#: Responses.
OKAY = 0
SLVERR = 2


def lite(address_bits: int) -> wiring.Signature:
    """AXI4-Lite of 32 bits."""
    return wiring.Signature(
        {
            "awaddr": Out(address_bits),
            "awvalid": Out(1),
            "awready": In(1),
            "wdata": Out(32),
            "wstrb": Out(4),
            "wvalid": Out(1),
            "wready": In(1),
            "bresp": In(2),
            "bvalid": In(1),
            "bready": Out(1),
            "araddr": Out(address_bits),
            "arvalid": Out(1),
            "arready": In(1),
            "rdata": In(32),
            "rresp": In(2),
            "rvalid": In(1),
            "rready": Out(1),
        }
    )


def address_channel(prefix: str) -> dict[str, wiring.Member]:
    """AW or AR of a manager. What never changes is a signal too: the vendors' tools look for it."""
    return {
        f"{prefix}addr": Out(64),
        f"{prefix}len": Out(8),
        f"{prefix}size": Out(3),
        f"{prefix}burst": Out(2),
        f"{prefix}lock": Out(1),
        f"{prefix}cache": Out(4),
        f"{prefix}prot": Out(3),
        f"{prefix}valid": Out(1),
        f"{prefix}ready": In(1),
    }


def read(data_bits: int) -> wiring.Signature:
    """The read channels of AXI4; one ID, so it has no signals."""
    return wiring.Signature(
        address_channel("ar")
        | {"rdata": In(data_bits), "rresp": In(2), "rlast": In(1), "rvalid": In(1), "rready": Out(1)}
    )


def write(data_bits: int) -> wiring.Signature:
    """The write channels of AXI4; one ID, so it has no signals."""
    return wiring.Signature(
        address_channel("aw")
        | {"wdata": Out(data_bits), "wstrb": Out(data_bits // 8), "wlast": Out(1), "wvalid": Out(1), "wready": In(1)}
        | {"bresp": In(2), "bvalid": In(1), "bready": Out(1)}
    )


#: AxBURST and AxCACHE: incrementing addresses; normal memory, modifiable and bufferable, as all the boards want it.
INCREMENTING = 1
CACHE = 0b0011


def constants(bus: wiring.PureInterface, prefix: str, beat_bytes: int) -> list[Any]:
    """The signals of an address channel that never change: full beats at incrementing addresses."""
    return [
        getattr(bus, f"{prefix}size").eq(beat_bytes.bit_length() - 1),
        getattr(bus, f"{prefix}burst").eq(INCREMENTING),
        getattr(bus, f"{prefix}lock").eq(0),
        getattr(bus, f"{prefix}cache").eq(CACHE),
        getattr(bus, f"{prefix}prot").eq(0),
    ]
