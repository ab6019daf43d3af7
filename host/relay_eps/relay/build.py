"""Setting a relay up: its choices checked, its server and link made, the model's weights moved into the server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.formats import Format
from relay_eps.eps.layout import Section
from relay_eps.eps.memory import Returning, aligned_empty
from relay_eps.errors import RelayError
from relay_eps.relay.layers import EpsLayer, LayerPlan, eps_layers
from relay_eps.relay.link import LeasedLink, Link, unbind
from relay_eps.relay.slots import MemoryLink, ModelledLink


def check_choices(
    mode: str, stash: str, micro_batch: int | None, max_grad_norm: float | None, *, deferred: bool
) -> None:
    """Raise RelayError for values that are unknown or do not go together."""
    if mode not in ("exact", "adama"):
        raise RelayError(f"unknown mode {mode!r}: use 'exact' or 'adama'")
    if stash not in ("device", "host"):
        raise RelayError(f"unknown stash {stash!r}: use 'device' or 'host'")
    if micro_batch is not None and micro_batch < 1:
        raise RelayError(f"a micro-batch holds at least 1 sample, not {micro_batch}")
    if max_grad_norm is not None and not 0 < max_grad_norm < float("inf"):
        raise RelayError(f"max_grad_norm must be finite and above 0, not {max_grad_norm}")
    if mode == "adama" and deferred:
        raise RelayError(
            "AdamA folds each gradient before the norm of all is known, so it cannot clip or scale the loss: "
            "use mode='exact'"
        )


def resolve_device(device: str | torch.device) -> torch.device:
    """The device, with its index; raises RelayError where it cannot be used."""
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise RelayError(f"there is no device {device!r}: use 'cpu', 'cuda' or 'cuda:N'") from None
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise RelayError("device='cuda' was asked for, but torch sees no CUDA device: use device='cpu'")
        # A device named without an index has None there, whatever the annotation says.
        index: int | None = resolved.index
        return torch.device("cuda", torch.cuda.current_device()) if index is None else resolved
    if resolved.type != "cpu":
        raise RelayError(f"device {resolved} is not supported: use 'cpu' or 'cuda'")
    return resolved


def make_server(wire: str | Format | None, device: torch.device) -> EagerParamServer:
    """The software server; for a CUDA device its memory is pinned, so that weights are copied from where they lie."""
    from relay_eps.eps.software import SoftwareEPS

    fmt = Format.FP32 if wire is None else Format.parse(wire)
    if device.type == "cuda":
        from relay_eps.relay.pinned import pinned_empty

        return SoftwareEPS(wire=fmt, allocate=partial(pinned_empty, device=device))
    return SoftwareEPS(wire=fmt)


def make_link(server: EagerParamServer, device: torch.device, model: ModelledLink | None) -> Link:
    """The link that suits device and server."""
    if device.type == "cuda":
        if model is not None:
            raise RelayError("a modelled link stands for a device that is not there: use it with device='cpu'")
        from relay_eps.relay.cuda import CudaLink

        return CudaLink(server, device)
    if model is None and server.capabilities.leases and server.capabilities.wire is Format.FP32:
        return LeasedLink(server)
    return MemoryLink(server, model or ModelledLink())


def load_model(server: EagerParamServer, link: Link, plans: Sequence[LayerPlan]) -> None:
    """Move the weights into the server, an EPS layer at a time; the model's own storage is released as it goes.

    If it fails, parameters get their values back and the layers made so far are removed. Raises RelayError, with
    nothing touched, for a parameter without values.
    """
    _refuse_meta(plans)
    moved: list[EpsLayer] = []
    returning = Returning()
    try:
        for eps in eps_layers(plans):
            _move(server, eps)
            moved.append(eps)
            returning.freed(eps.layout.nbytes(Format.FP32))
        link.prepare(plans)
    except BaseException:
        link.abort()
        for eps in moved:
            give_back(server, eps)
            server.remove(eps.name)
        raise
    returning.flush()


def _move(server: EagerParamServer, eps: EpsLayer) -> None:
    """Move one EPS layer's weights; if that fails, the parameters have them again and the server knows nothing."""
    flat = flat_weights(eps)
    # Before the server takes its memory: the weights are held once at that moment, not twice.
    unbind(eps, torch.device("cpu"), torch.float32)
    try:
        server.create(eps.layout)
        try:
            server.write(eps.name, Section.P, flat).result()
        except BaseException:
            server.remove(eps.name)
            raise
    except BaseException:
        _put(eps, flat)
        raise


def _refuse_meta(plans: Sequence[LayerPlan]) -> None:
    for eps in eps_layers(plans):
        for spec, parameter in zip(eps.layout.tensors, eps.parameters, strict=True):
            if parameter.is_meta:
                raise RelayError(
                    f"{spec.name} is on the meta device and has no values: make the model on the CPU, or call "
                    "model.to_empty(device='cpu') and load weights into it first"
                )


def return_weights(server: EagerParamServer, plans: Sequence[LayerPlan], *, remove: bool) -> None:
    """Put all weights back into the model, an EPS layer at a time; with ``remove`` the server lets go of each."""
    for eps in eps_layers(plans):
        give_back(server, eps)
        if remove:
            server.remove(eps.name)


def flat_weights(eps: EpsLayer) -> NDArray[np.float32]:
    """The parameters' values as one flat fp32 section."""
    # Pages of its own, zero as they come, that go straight back: the C library may keep what it is given back.
    flat = aligned_empty(eps.layout.nbytes(Format.FP32)).view(np.float32)
    for slot, parameter in zip(eps.layout.slots, eps.parameters, strict=True):
        torch.from_numpy(flat[slot.start : slot.stop]).view(slot.spec.shape).copy_(parameter.detach())
    return flat


def give_back(server: EagerParamServer, eps: EpsLayer) -> None:
    """Put an EPS layer's weights back into the model's parameters, as storage of their own."""
    _put(eps, server.read(eps.name, Section.P).result())


def _put(eps: EpsLayer, weights: NDArray[np.float32]) -> None:
    flat = torch.from_numpy(weights)
    for slot, parameter in zip(eps.layout.slots, eps.parameters, strict=True):
        parameter.data = flat[slot.start : slot.stop].view(slot.spec.shape).clone()
