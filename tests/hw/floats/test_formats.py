"""Formats of floats, and the fields of a value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.formats import BF16, FP16, FP32, FloatFormat
from relay_eps_hw.floats.wire import WireFormat
from tests.hw import rational
from tests.hw.floats.combinational import evaluate


@pytest.mark.parametrize(("fmt", "dtype"), [(FP32, np.float32), (FP16, np.float16), (BF16, ml_dtypes.bfloat16)])
def test_the_named_formats_are_those_of_numpy(fmt: FloatFormat, dtype: type):
    info = ml_dtypes.finfo(dtype)
    assert (fmt.width, fmt.fraction, fmt.precision) == (info.bits, info.nmant, info.nmant + 1)
    assert fmt.bias == info.maxexp - 1
    unsigned = np.dtype(f"u{fmt.width // 8}")
    patterns = {"infinity": np.inf, "one": 1.0, "negative_zero": -0.0}
    for name, value in patterns.items():
        assert getattr(fmt, name) == np.array(value, dtype).view(unsigned), name
    assert np.isnan(np.array(fmt.nan, unsigned).view(dtype))


@pytest.mark.parametrize(("exponent", "fraction"), [(2, 4), (12, 4), (5, 1), (5, 53)])
def test_widths_that_no_unit_is_built_for_are_refused(exponent: int, fraction: int):
    with pytest.raises(ValueError, match="use 3 to 11 exponent bits and 2 to 52 fraction bits"):
        FloatFormat(exponent, fraction)


def test_the_wire_formats_have_their_fields():
    assert [wire.format for wire in WireFormat] == [FP32, BF16, FP16]


def test_the_fields_of_every_value_of_a_small_format():
    fmt = FloatFormat(3, 3)

    def make(p, bits):
        value = Fields(fmt, bits)
        flags = (value.is_nan, value.is_inf, value.is_zero)
        return (value.sign, value.effective_exponent, value.significand, *flags)

    every = range(1 << fmt.width)
    for bits, (sign, exponent, significand, *flags) in zip(
        every, evaluate(make, [fmt.width], [(bits,) for bits in every]), strict=True
    ):
        exact = rational.value(fmt, bits)
        is_infinite = bits in (fmt.infinity, fmt.infinity | fmt.negative_zero)
        assert flags == [rational.is_nan(fmt, bits), is_infinite, exact == 0]
        if exact is not None:
            assert exact == (-1) ** sign * significand * 2 ** (exponent - fmt.bias - fmt.fraction)
