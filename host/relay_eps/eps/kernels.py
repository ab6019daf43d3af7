"""The compiled arithmetic: the golden model's bits at the speed of memory, on worker threads of its own.

The sources are in host/kernels. What a kernel may use is decided at run time: the instruction set from the CPU and the
operating system, the threads from the cores that this process may use.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from relay_eps.eps.hyper import ApplyScalars, FoldScalars
from relay_eps.errors import ContractError, RelayEpsError, ServerClosed

# The contract and the golden model run without the kernels; the cause is told when somebody asks for them.
_missing: ImportError | None = None
try:
    from relay_eps.eps import _kernels
except ImportError as error:
    _missing = error

Array = NDArray[np.float32]

#: Elements that a thread takes at a time: 64 KiB of each fp32 section.
CHUNK = 16384

_THREADS_VARIABLE = "RELAY_EPS_THREADS"


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that this build holds and this CPU can run, best first; empty without the kernels."""
    return tuple(_kernels.instruction_sets()) if _missing is None else ()


def default_threads() -> int:
    """The threads that kernels use where nothing else is asked for, the calling one included.

    ``RELAY_EPS_THREADS`` if it is set; else the cores this process may run on, divided among the processes of this
    machine (``LOCAL_WORLD_SIZE``, as torchrun sets it), and at least 1. ``OMP_NUM_THREADS`` is not consulted: launchers
    set it to 1 for other reasons. Raises ContractError where one of the two variables is not a positive integer.
    """
    asked = _positive_variable(_THREADS_VARIABLE)
    if asked is not None:
        return asked
    processes = _positive_variable("LOCAL_WORLD_SIZE") or 1
    return max(1, _usable_cores() // processes)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive_variable(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ContractError(f"the environment variable {name} is {text!r}: it must be a positive integer, or unset")
    return int(text)


class KernelArithmetic:
    """The compiled kernels behind the `relay_eps.eps.arithmetic.Arithmetic` interface.

    ``threads`` is the budget, the calling thread included (default: `default_threads`). ``instruction_set`` is one of
    `instruction_sets` (default: the best). Raises ContractError where either cannot be had, and RelayEpsError with the
    cause where the package was installed without its kernels. Every call checks its arrays and raises ContractError,
    with nothing changed, for a wrong dtype, length or layout, or for sections that share memory.
    """

    def __init__(self, threads: int | None = None, instruction_set: str | None = None) -> None:
        if _missing is not None:
            raise RelayEpsError(
                f"the compiled kernels cannot be used: {_missing}. Install the package again on this machine with a "
                "C++ compiler at hand, or use the golden arithmetic, which is slow"
            ) from _missing
        if instruction_set is None:
            instruction_set = instruction_sets()[0]
            if instruction_set == "plain":
                _warn_of_plain()
        kernels = _kernels.Kernels(instruction_set, default_threads() if threads is None else threads, CHUNK)
        self._kernels: _kernels.Kernels | None = kernels
        self.threads = kernels.threads
        self.instruction_set = kernels.instruction_set

    @property
    def name(self) -> str:
        """For messages, such as "avx512, 2 threads"."""
        return f"{self.instruction_set}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def fold(self, m: Array, v: Array, g: NDArray, c: FoldScalars, *, scale: float, first: bool) -> None:
        """Put one gradient into m and v."""
        self._open().fold(m, v, g, c.b1, c.c1, c.b2, c.c2, scale, first)

    def apply(self, p: Array, m: Array, v: Array, c: ApplyScalars, wire: NDArray | None) -> None:
        """Update p, and the wire copy (float16 or uint16) where there is one, from m and v."""
        self._open().apply(p, m, v, wire, c.r2, c.eps, c.k, c.s)

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
        self._open().fold_apply(
            p,
            m,
            v,
            g,
            wire,
            b1=fold.b1,
            c1=fold.c1,
            b2=fold.b2,
            c2=fold.c2,
            scale=scale,
            r2=apply.r2,
            eps=apply.eps,
            k=apply.k,
            s=apply.s,
            first=first,
        )

    def accumulate(self, total: Array, g: NDArray, *, first: bool) -> None:
        """Copy the first gradient into ``total`` (widened), or add a later one."""
        self._open().accumulate(total, g, first)

    def convert(self, source: NDArray, out: NDArray) -> None:
        """Copy ``source`` into ``out``: narrowing fp32 to 16 bits, widening 16 bits to fp32, or plain."""
        self._open().convert(source, out)

    def all_finite(self, values: NDArray) -> bool:
        """Whether no element (float32, float16, or uint16 for bf16) is NaN or infinite."""
        return self._open().all_finite(values)

    def close(self) -> None:
        """Stop the threads, once calls that are running have ended. Closing twice is harmless."""
        self._kernels = None

    def _open(self) -> _kernels.Kernels:
        if self._kernels is None:
            raise ServerClosed("these kernels were closed and take no more calls: make a new KernelArithmetic")
        return self._kernels


@lru_cache(maxsize=1)
def _warn_of_plain() -> None:
    warnings.warn(
        "this CPU has none of the vector instructions that the kernels know (AVX2, AVX-512, NEON): "
        "the EPS runs on plain code, slower (with fp16 several times), with the same bits",
        RuntimeWarning,
        stacklevel=3,
    )
