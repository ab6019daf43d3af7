"""Berkeley SoftFloat, as the package softfloatpy brings it, on arrays of bits: the judge of the float units."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import softfloatpy._core
from numpy.typing import NDArray

from relay_eps_hw.floats.formats import BF16, FP16, FP32, FloatFormat
from relay_eps_sim.verilator import compile_library

Bits = NDArray[np.uint32]

#: SoftFloat's exception flags.
INEXACT, UNDERFLOW, OVERFLOW, INFINITE, INVALID = 1, 2, 4, 8, 16


@dataclass(frozen=True)
class Judged:
    """SoftFloat's results, and the exception flags of each."""

    bits: Bits
    flags: NDArray[np.uint8]


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    # Kept with the process; the operating system keeps the file of a loaded library.
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "softfloat.so"
        compile_library(Path(__file__).with_name("softfloat.cpp"), target)
        return ctypes.CDLL(str(target)), ctypes.CDLL(softfloatpy._core.__file__)


def _apply(function: str, a: Bits, b: Bits | None = None, *, low: bool = False) -> Judged:
    mapper, softfloat = _libraries()
    a = np.ascontiguousarray(a, np.uint32)
    second = None if b is None else np.ascontiguousarray(b, np.uint32)
    result, flags = np.empty_like(a), np.empty(a.shape, np.uint8)
    variable = {
        name: ctypes.c_void_p(ctypes.addressof(ctypes.c_uint8.in_dll(softfloat, name)))
        for name in ("softfloat_exceptionFlags", "softfloat_roundingMode")
    }
    mapper.map_function(
        ctypes.cast(getattr(softfloat, function), ctypes.c_void_p),
        ctypes.c_void_p(a.ctypes.data),
        None if second is None else ctypes.c_void_p(second.ctypes.data),
        ctypes.c_void_p(result.ctypes.data),
        ctypes.c_void_p(flags.ctypes.data),
        ctypes.c_uint64(a.size),
        variable["softfloat_exceptionFlags"],
        variable["softfloat_roundingMode"],
        int(low),
    )
    return Judged(result, flags)


def add(a: Bits, b: Bits) -> Judged:
    """fp32 ``a + b``."""
    return _apply("f32_add", a, b)


def multiply(a: Bits, b: Bits) -> Judged:
    """fp32 ``a * b``."""
    return _apply("f32_mul", a, b)


def square(a: Bits) -> Judged:
    """fp32 ``a * a``."""
    return _apply("f32_mul", a, a)


def divide(a: Bits, b: Bits) -> Judged:
    """fp32 ``a / b``."""
    return _apply("f32_div", a, b)


def root(a: Bits) -> Judged:
    """fp32 ``sqrt(a)``."""
    return _apply("f32_sqrt", a)


def narrow(a: Bits, fmt: FloatFormat) -> Judged:
    """fp32 ``a`` in another format, nearest even."""
    if fmt == FP32:
        return Judged(a, np.zeros(a.shape, np.uint8))
    return _apply({BF16: "f32_to_bf16", FP16: "f32_to_f16"}[fmt], a, low=True)


def widen(a: Bits, fmt: FloatFormat) -> Judged:
    """The fp32 value of the low bits of ``a``, in ``fmt``."""
    if fmt == FP32:
        return Judged(a, np.zeros(a.shape, np.uint8))
    return _apply({BF16: "bf16_to_f32", FP16: "f16_to_f32"}[fmt], a & np.uint32(0xFFFF))


def is_nan(bits: Bits, fmt: FloatFormat = FP32) -> NDArray[np.bool_]:
    """Which of ``bits`` are NaN in ``fmt``, with nothing above its width."""
    return ((bits & ~np.uint32(fmt.negative_zero)) > fmt.infinity) & (bits < 1 << fmt.width)


def differences(got: Bits, wanted: Bits, fmt: FloatFormat = FP32) -> NDArray[np.intp]:
    """Where the bits differ; one NaN is as good as another."""
    return np.flatnonzero((got != wanted) & ~(is_nan(got, fmt) & is_nan(wanted, fmt)))
