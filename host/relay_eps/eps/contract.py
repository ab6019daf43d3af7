"""The EPS contract: what every eager parameter server does, whatever it is made of.

An EPS keeps *EPS layers*: named lists of tensors, each list stored as one flat array a section (weights ``p``, moments
``m`` and ``v``, a summed gradient where one is kept, and the wire copy). Calls return a `Ticket` at once. On one layer
they take effect in the order they were made; different layers are independent.

A call that fails names the layer; afterwards the layer's state is as before the call, or the layer is *damaged* and
every later call on it is refused (`LayerDamaged`) until p, m and v have been rewritten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from numpy.typing import NDArray

from relay_eps.eps.formats import Format
from relay_eps.eps.hyper import AdamHyper
from relay_eps.eps.layout import LayerLayout, Section, SectionType

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S", bound="EagerParamServer")


class Ticket(ABC, Generic[T_co]):
    """A call's receipt."""

    @abstractmethod
    def done(self) -> bool:
        """Whether the call has finished, well or badly."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> T_co:
        """Wait for the call and return its value; raises the call's own error, or TimeoutError after ``timeout`` s."""


class Lease:
    """A read-only view of a layer's weights where they lie, in the wire format.

    Applies, folds-with-apply and writes of ``p`` on the layer wait until it is released. Releasing twice is harmless.
    Usable as a context manager.
    """

    def __init__(self, layer: str, array: NDArray, release: Callable[[], None]) -> None:
        self.layer = layer
        #: Flat array of the layout's ``size`` elements, in the wire format's carrier dtype.
        self.array = array
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the view back; the array must not be read after this."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


@dataclass(frozen=True)
class Capabilities:
    """What a server supports, and how it is set up."""

    #: A short name for messages and logs, such as "software (avx512, 2 threads)".
    name: str
    wire: Format
    gradients: tuple[Format, ...]
    #: How each section is stored; p, m and v are fp32 today.
    sections: tuple[SectionType, ...]
    #: Whether ``lease`` works; where it does not, use ``fetch``.
    leases: bool
    #: Most elements a layer can have; None for no limit but memory.
    largest_layer: int | None = None


class EagerParamServer(ABC):
    """The contract. Every array argument is a contiguous flat array of the layout's ``size`` elements.

    Gradient arrays are float32 (fp32), float16 (fp16) or uint16 (bf16 bits); their padding must be zero. A gradient,
    and an ``out`` array, belong to the server from the call until its ticket is done. Layer names that are unknown,
    wrong lengths, wrong dtypes and scalars outside the contract raise ContractError at the call, not in the ticket.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this server supports."""

    # --- layers

    @abstractmethod
    def create(self, layout: LayerLayout) -> None:
        """Add a layer: p, m, v zero and t = 0. A frozen layer (``trainable=False``) gets p and wire only.

        Raises ContractError if the name is taken or the layer cannot be held.
        """

    @abstractmethod
    def remove(self, layer: str) -> None:
        """Drop a layer and its memory, after its outstanding calls. Raises ContractError while it is leased."""

    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order of creation."""

    @abstractmethod
    def layout(self, layer: str) -> LayerLayout:
        """The layout a layer was created with."""

    @abstractmethod
    def stored_bytes(self) -> int:
        """Bytes that all layers' sections take, padding, wire copies and summed gradients included."""

    # --- weights to the device

    @abstractmethod
    def fetch(self, layer: str, out: NDArray) -> Ticket[None]:
        """Copy the weights, in the wire format, into ``out`` (``capabilities.wire.carrier``)."""

    @abstractmethod
    def lease(self, layer: str) -> Ticket[Lease]:
        """A view of the weights in the wire format; raises ContractError where ``capabilities.leases`` is false."""

    # --- gradients in

    @abstractmethod
    def accumulate(self, layer: str, grad: NDArray, *, first: bool) -> Ticket[None]:
        """Sum a gradient in the server, in fp32: the ``first`` is copied, later ones are added."""

    @abstractmethod
    def fold(
        self, layer: str, grad: NDArray | None, hyper: AdamHyper, *, first: bool, scale: float = 1.0
    ) -> Ticket[None]:
        """Put ``scale`` times one gradient into m and v.

        ``first`` marks the mini-batch's first fold, which carries the decay. ``grad=None`` takes the summed gradient.
        Raises ContractError for a frozen layer, and for ``None`` where no gradient has been summed.
        """

    @abstractmethod
    def apply(self, layer: str, hyper: AdamHyper) -> Ticket[None]:
        """Count one apply (t becomes t + 1) and update p, and the wire copy, from m and v."""

    @abstractmethod
    def fold_apply(
        self, layer: str, grad: NDArray | None, hyper: AdamHyper, *, first: bool, scale: float = 1.0
    ) -> Ticket[None]:
        """`fold` then `apply`, as one pass over memory; the same bits as the two calls."""

    # --- checkpoints

    @abstractmethod
    def read(self, layer: str, section: Section, out: NDArray | None = None) -> Ticket[NDArray]:
        """Copy a section out, into ``out`` or a new array, in the section's own format.

        Raises ContractError for a section the layer does not have (m of a frozen layer, a sum that was not made).
        """

    @abstractmethod
    def write(self, layer: str, section: Section, values: NDArray) -> Ticket[None]:
        """Replace a section (p, m, v or the summed gradient); p renews the wire copy too. Padding is written as zero.

        ``values`` is copied before the call returns, or belongs to the server until the ticket is done. Raises
        ContractError for the wire section, and for a v in which any element has its sign bit set.
        """

    @abstractmethod
    def applies(self, layer: str) -> int:
        """t: how many applies the layer has had, those still queued included."""

    @abstractmethod
    def set_applies(self, layer: str, t: int) -> None:
        """Set t (0 or more), as a checkpoint is loaded; waits for the layer's outstanding calls."""

    @abstractmethod
    def damaged(self, layer: str) -> str | None:
        """Why the layer is refused, or None where it is sound."""

    # --- the server itself

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all outstanding calls; raises the first error of a call that nobody has waited for."""

    @abstractmethod
    def close(self) -> None:
        """Finish outstanding calls, stop workers, free memory. Closing twice is harmless."""

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
