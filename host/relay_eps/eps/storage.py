"""An EPS layer in host memory: one flat array for each section, with padding that stays zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.formats import Format
from relay_eps.eps.layout import ALIGN_BYTES, LayerLayout, Section
from relay_eps.errors import ContractError

#: Makes a flat byte array of the given length; its first byte lies on a multiple of 64, its contents are arbitrary.
Allocate = Callable[[int], NDArray[np.uint8]]


class LayerStore:
    """The sections of one EPS layer.

    A frozen layer has p alone. A ``wire`` of 16 bits adds the wire copy; with an fp32 wire, p itself is the wire copy.
    The summed gradient is allocated at first use and kept. Raises ContractError, with layer and bytes, where
    ``allocate`` fails.
    """

    def __init__(self, layout: LayerLayout, wire: Format, allocate: Allocate) -> None:
        self.layout = layout
        self._allocate = allocate
        kinds = [Section.P, Section.M, Section.V] if layout.trainable else [Section.P]
        formats = dict.fromkeys(kinds, Format.FP32)
        if wire is not Format.FP32:
            formats[Section.WIRE] = wire
        total = sum(layout.nbytes(fmt) for fmt in formats.values())
        self._sections = {section: self._array(fmt, total) for section, fmt in formats.items()}
        for array in self._sections.values():
            array.fill(0)
        self._padding = _indices(layout)

    def _array(self, fmt: Format, total: int) -> NDArray[Any]:
        nbytes = self.layout.nbytes(fmt)
        if not nbytes:
            return np.empty(0, fmt.carrier)
        try:
            block = self._allocate(nbytes)
        except (MemoryError, OSError, RuntimeError, ValueError) as error:
            raise ContractError(
                f"layer {self.layout.name!r} cannot be held: its {total:,} bytes could not be allocated "
                f"({str(error) or type(error).__name__}); use a smaller layer, a narrower wire, or more memory"
            ) from error
        if block.nbytes != nbytes or block.ctypes.data % ALIGN_BYTES:
            raise ContractError(
                f"layer {self.layout.name!r}: the allocator gave {block.nbytes} bytes at {block.ctypes.data:#x} "
                f"where {nbytes} on a multiple of {ALIGN_BYTES} were asked for"
            )
        return block.view(fmt.carrier)

    @property
    def nbytes(self) -> int:
        """Bytes of all sections."""
        return sum(array.nbytes for array in self._sections.values())

    def __contains__(self, section: Section) -> bool:
        return section in self._sections

    def __getitem__(self, section: Section) -> NDArray[Any]:
        return self._sections[section]

    @property
    def wire_copy(self) -> NDArray[Any] | None:
        """The 16-bit weights; None where the wire is fp32."""
        return self._sections.get(Section.WIRE)

    @property
    def weights(self) -> NDArray[Any]:
        """The weights in the wire format."""
        wire = self.wire_copy
        return self._sections[Section.P] if wire is None else wire

    def add_sum(self) -> None:
        """Allocate the summed gradient if it is not there yet; its contents are arbitrary."""
        if Section.GRAD not in self._sections:
            self._sections[Section.GRAD] = self._array(Format.FP32, self.layout.nbytes(Format.FP32))

    def lease_view(self) -> NDArray[Any]:
        """The weights in the wire format where they lie, read-only."""
        view = self.weights.view()
        view.flags.writeable = False
        return view

    def clear_padding(self, section: Section) -> None:
        """Write the section's padding as zero."""
        if self._padding.size:
            self._sections[section][self._padding] = 0

    def padding_is_zero(self, values: NDArray[Any]) -> bool:
        """Whether the padding of ``values`` (of any format's carrier) is +0 or -0 throughout."""
        if not self._padding.size:
            return True
        padding = values[self._padding]
        # uint16 holds bf16 bits: all but the sign must be clear.
        return not (padding & 0x7FFF if padding.dtype == np.uint16 else padding).any()


def _indices(layout: LayerLayout) -> NDArray[np.int64]:
    gaps = [np.arange(start, stop, dtype=np.int64) for start, stop in layout.gaps()]
    return np.concatenate(gaps) if gaps else np.empty(0, np.int64)
