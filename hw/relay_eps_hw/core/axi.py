"""The signals of AXI4-Lite and AXI4, by the names that the vendors' tools expect, as a manager has them."""

from __future__ import annotations

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
