"""What the host-memory server refuses at the call. Each function raises ContractError naming the layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.formats import Format
from relay_eps.eps.host_layer import HostLayer
from relay_eps.eps.layout import Section
from relay_eps.errors import ContractError

T = TypeVar("T")

_GRADIENT_DTYPES = tuple(fmt.carrier for fmt in Format)


def check_array(
    layer: HostLayer, what: str, array: object, dtypes: tuple[np.dtype[Any], ...], *, writeable: bool = False
) -> None:
    """``array`` must be a flat, contiguous numpy array of the layout's size and one of ``dtypes``."""
    if not isinstance(array, np.ndarray):
        raise ContractError(f"layer {layer.name!r}: {what} must be a numpy array, not {type(array).__name__}")
    if array.dtype not in dtypes:
        wanted = " or ".join(str(d) for d in dtypes)
        raise ContractError(
            f"layer {layer.name!r}: {what} has dtype {array.dtype}; give {wanted} (uint16 holds bf16 bits)"
        )
    size = layer.layout.size
    if array.shape != (size,):
        raise ContractError(f"layer {layer.name!r}: {what} has shape {array.shape}; the layout needs ({size},)")
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise ContractError(f"layer {layer.name!r}: {what} must be contiguous and aligned; copy it first")
    if writeable and not array.flags.writeable:
        raise ContractError(f"layer {layer.name!r}: {what} is read-only; give an array that can be written")


def check_gradient(layer: HostLayer, grad: object) -> None:
    """``grad`` must be an array of a gradient format with zero padding."""
    check_array(layer, "grad", grad, _GRADIENT_DTYPES)
    assert isinstance(grad, np.ndarray)
    if not layer.store.padding_is_zero(grad):
        raise ContractError(f"layer {layer.name!r}: the padding of grad is not zero; clear it between the tensors")


def gradient(layer: HostLayer, what: str, grad: NDArray[Any] | None) -> NDArray[Any]:
    """``grad`` once checked, or the summed gradient for None."""
    if grad is None:
        refuse_without_sum(layer, what)
        return layer.store[Section.GRAD]
    check_gradient(layer, grad)
    return grad


def scalars(layer: HostLayer, work_out: Callable[[], T]) -> T:
    """The scalars that ``work_out`` makes, with the layer's name put before what it refuses."""
    try:
        return work_out()
    except ContractError as error:
        raise ContractError(f"layer {layer.name!r}: {error}") from None


def section_of(layer: HostLayer, section: Section | str) -> Section:
    """``section`` as a Section."""
    try:
        return Section(section)
    except ValueError:
        known = ", ".join(s.value for s in Section)
        raise ContractError(f"layer {layer.name!r} has no section {section!r}; sections are {known}") from None


def stored_section(layer: HostLayer, section: Section) -> NDArray[Any]:
    """The array of a section that the layer must have."""
    if section not in layer.store:
        why = "it is frozen" if not layer.layout.trainable else "it was never made"
        raise ContractError(f"layer {layer.name!r} has no section {section.value!r}: {why}")
    return layer.store[section]


def refuse_frozen(layer: HostLayer, what: str) -> None:
    """The layer must be trainable."""
    if not layer.layout.trainable:
        raise ContractError(f"layer {layer.name!r} is frozen: it has no moments and no gradient, so no {what}")


def refuse_without_sum(layer: HostLayer, what: str) -> None:
    """The layer must have a summed gradient, or have been promised one by a queued call."""
    if not layer.sum_promised:
        raise ContractError(
            f"layer {layer.name!r} has no summed gradient for {what}: call accumulate with first=True before it"
        )


def refuse_leased(layer: HostLayer) -> None:
    """Nobody may hold a lease."""
    if layer.queue.leases:
        raise ContractError(f"layer {layer.name!r} is leased: release its {layer.queue.leases} leases, then remove it")
