"""The arithmetic of a host-memory EPS as in-place operations on flat arrays: one interface, two makers.

`GoldenArithmetic` is the golden model; `relay_eps.eps.kernels.KernelArithmetic` is the compiled one. The server that
uses them (`relay_eps.eps.host_server.HostEPS`) is the same for both, so only the arithmetic can differ, and it may not.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps import golden
from relay_eps.eps.formats import Format, narrow, widen
from relay_eps.eps.hyper import ApplyScalars, FoldScalars

Array = NDArray[np.float32]


class Arithmetic(Protocol):
    """In-place operations; all arrays are flat, contiguous and of one length (0 allowed).

    ``g`` is float32, float16, or uint16 (bf16 bits); ``wire`` (float16 or uint16) takes the narrowed new weights, or is
    None. Called by one thread at a time; an implementation may use threads of its own inside a call. A ContractError
    means that nothing was changed; after any other error the arrays written to may hold anything.
    """

    @property
    def name(self) -> str:
        """For messages, such as "avx512, 2 threads"."""

    def fold(self, m: Array, v: Array, g: NDArray, c: FoldScalars, *, scale: float, first: bool) -> None:
        """Put one gradient into m and v."""

    def apply(self, p: Array, m: Array, v: Array, c: ApplyScalars, wire: NDArray | None) -> None:
        """Update p, and the wire copy, from m and v."""

    def fold_apply(
        self,
        p: Array,
        m: Array,
        v: Array,
        g: NDArray,
        fold: FoldScalars,
        apply: ApplyScalars,
        wire: NDArray | None,
        *,
        scale: float,
        first: bool,
    ) -> None:
        """Both in one pass over memory."""

    def accumulate(self, total: Array, g: NDArray, *, first: bool) -> None:
        """Copy the first gradient into ``total`` (widened), or add a later one."""

    def convert(self, source: NDArray, out: NDArray) -> None:
        """Copy ``source`` into ``out``: narrowing fp32 to 16 bits, widening 16 bits to fp32, or plain."""

    def all_finite(self, values: NDArray) -> bool:
        """Whether no element is NaN or infinite."""

    def close(self) -> None:
        """Stop threads."""


class GoldenArithmetic:
    """The golden model behind the interface: slow, and right by construction."""

    name = "golden"

    def fold(self, m: Array, v: Array, g: NDArray, c: FoldScalars, *, scale: float, first: bool) -> None:
        m[:], v[:] = golden.fold(m, v, g, c, scale=scale, first=first)

    def apply(self, p: Array, m: Array, v: Array, c: ApplyScalars, wire: NDArray | None) -> None:
        p[:] = golden.apply(p, m, v, c)
        if wire is not None:
            self.convert(p, wire)

    def fold_apply(
        self,
        p: Array,
        m: Array,
        v: Array,
        g: NDArray,
        fold: FoldScalars,
        apply: ApplyScalars,
        wire: NDArray | None,
        *,
        scale: float,
        first: bool,
    ) -> None:
        self.fold(m, v, g, fold, scale=scale, first=first)
        self.apply(p, m, v, apply, wire)

    def accumulate(self, total: Array, g: NDArray, *, first: bool) -> None:
        total[:] = golden.accumulate(total, g, first=first)

    def convert(self, source: NDArray, out: NDArray) -> None:
        out[:] = narrow(widen(source), Format.of(out)) if source.dtype != out.dtype else source

    def all_finite(self, values: NDArray) -> bool:
        return bool(np.isfinite(widen(values)).all())

    def close(self) -> None:
        pass
