"""Train networks larger than the device that computes them, through an eager parameter server (EPS).

The names below are looked up when they are first used, so that ``import relay_eps`` loads neither torch nor numpy and
the parameter servers work on machines that have no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relay_eps.eps import AdamHyper, EagerParamServer, Format, GoldenEPS, Section, SoftwareEPS
    from relay_eps.relay import ModelledLink, Relay, RelayLayer, StepResult, Whole

__all__ = [
    "AdamHyper",
    "EagerParamServer",
    "Format",
    "GoldenEPS",
    "ModelledLink",
    "Relay",
    "RelayLayer",
    "Section",
    "SoftwareEPS",
    "StepResult",
    "Whole",
    "__version__",
]

_HOME = {
    **dict.fromkeys(
        ("AdamHyper", "EagerParamServer", "Format", "GoldenEPS", "Section", "SoftwareEPS"), "relay_eps.eps"
    ),
    **dict.fromkeys(("ModelledLink", "Relay", "RelayLayer", "StepResult", "Whole"), "relay_eps.relay"),
}

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("relay-eps")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
