"""The eager parameter server: its contract, the golden model, and the servers in host memory.

Needs numpy alone. `SoftwareEPS` also needs the compiled kernels, and is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relay_eps.eps.contract import Capabilities, EagerParamServer, Lease, Ticket
from relay_eps.eps.formats import Format, narrow, widen
from relay_eps.eps.host_server import GoldenEPS, HostEPS
from relay_eps.eps.hyper import AdamHyper
from relay_eps.eps.layout import LayerLayout, Section, SectionType, TensorSlot, TensorSpec

if TYPE_CHECKING:
    from relay_eps.eps.software import SoftwareEPS

__all__ = [
    "AdamHyper",
    "Capabilities",
    "EagerParamServer",
    "Format",
    "GoldenEPS",
    "HostEPS",
    "LayerLayout",
    "Lease",
    "Section",
    "SectionType",
    "SoftwareEPS",
    "TensorSlot",
    "TensorSpec",
    "Ticket",
    "narrow",
    "widen",
]


def __getattr__(name: str) -> Any:
    if name == "SoftwareEPS":
        from relay_eps.eps.software import SoftwareEPS

        return SoftwareEPS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
