"""Formats: widening is exact, narrowing rounds to nearest even; bf16 is judged by ml_dtypes, fp16 by numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from relay_eps.eps.formats import Format, narrow, widen
from relay_eps.errors import ContractError
from tests.host.eps.bits import assert_same_bits, bits, hard_values

EVERY_16_BITS = np.arange(2**16, dtype=np.uint16)
SIXTEEN = (Format.BF16, Format.FP16)


def second_opinion(values: NDArray[np.float32], fmt: Format) -> NDArray:
    with np.errstate(all="ignore"):
        if fmt is Format.BF16:
            return values.astype(ml_dtypes.bfloat16).view(np.uint16)
        return values.astype(np.float16)


def halfway(fmt: Format) -> NDArray[np.float32]:
    """The fp32 values halfway between neighbours of ``fmt``, and the fp32 neighbours of those, of both signs."""
    neighbours = widen(EVERY_16_BITS.view(fmt.carrier))
    positive = neighbours[np.isfinite(neighbours) & ~np.signbit(neighbours)].astype(np.float64)
    # Past the largest lies the value that would come next: halfway to it, nearest even goes to infinity.
    ends = np.append(positive, 2 * positive[-1] - positive[-2])
    ties = ((ends[:-1] + ends[1:]) / 2).astype(np.float32)
    assert np.array_equal(ties.astype(np.float64), (ends[:-1] + ends[1:]) / 2), "fp32 holds every halfway value"
    around = np.concatenate([np.nextafter(ties, np.float32(0)), ties, np.nextafter(ties, np.float32(np.inf))])
    return np.concatenate([around, -around])


def test_widening_bf16_gives_the_values_of_all_patterns() -> None:
    assert_same_bits(widen(EVERY_16_BITS), EVERY_16_BITS.view(ml_dtypes.bfloat16).astype(np.float32))


def test_widening_fp16_gives_the_values_of_all_patterns() -> None:
    patterns = EVERY_16_BITS.view(np.float16)
    wide = widen(patterns)
    assert wide.dtype == np.float32
    sign = np.where(EVERY_16_BITS >> 15, -1.0, 1.0)
    exponent, fraction = (EVERY_16_BITS >> 10) & 31, (EVERY_16_BITS & 1023).astype(np.float64)
    finite = exponent < 31
    magnitude = np.where(exponent == 0, fraction * 2.0**-24, (1024 + fraction) * 2.0 ** (exponent.astype(float) - 25))
    assert np.array_equal(wide[finite], (sign * magnitude)[finite])
    assert np.array_equal(np.isnan(wide[~finite]), fraction[~finite] != 0)
    assert np.array_equal(np.isinf(wide[~finite]), fraction[~finite] == 0)


@pytest.mark.parametrize("fmt", SIXTEEN)
def test_what_was_widened_narrows_to_itself(fmt: Format) -> None:
    patterns = EVERY_16_BITS.view(fmt.carrier)
    assert_same_bits(narrow(widen(patterns), fmt), patterns)


@pytest.mark.parametrize("fmt", SIXTEEN)
def test_ties_and_their_neighbours_round_to_nearest_even(fmt: Format) -> None:
    values = halfway(fmt)
    assert_same_bits(narrow(values, fmt), second_opinion(values, fmt))
    third = len(values) // 6
    ties = narrow(values[third : 2 * third], fmt)
    assert not (bits(ties) & 1).any(), "a tie goes to the even neighbour"


@pytest.mark.parametrize("fmt", SIXTEEN)
def test_narrowing_agrees_with_a_second_opinion_on_hard_values(fmt: Format, rng: np.random.Generator) -> None:
    values = hard_values(rng, 200_000)
    assert_same_bits(narrow(values, fmt), second_opinion(values, fmt))


@pytest.mark.parametrize("fmt", SIXTEEN)
@given(pattern=st.integers(0, 2**32 - 1))
def test_narrowing_agrees_with_a_second_opinion_on_any_pattern(fmt: Format, pattern: int) -> None:
    value = np.array([pattern], np.uint32).view(np.float32)
    assert_same_bits(narrow(value, fmt), second_opinion(value, fmt))


def test_every_nan_stays_nan_in_bf16() -> None:
    # The fraction's kept bits may all be clear: cut off, it would read as infinity.
    fractions = np.concatenate([np.arange(1, 2**16), 2 ** np.arange(23)]).astype(np.uint32)
    for sign in (0, 0x80000000):
        nans = (fractions | np.uint32(0x7F800000 | sign)).view(np.float32)
        assert np.isnan(widen(narrow(nans, Format.BF16))).all()


def test_fp32_passes_as_it_is() -> None:
    values = np.arange(5, dtype=np.float32)
    assert widen(values) is values
    assert narrow(values, Format.FP32) is values


@pytest.mark.parametrize("fmt", list(Format))
def test_a_format_is_known_by_name_and_by_array(fmt: Format) -> None:
    assert Format.parse(fmt.value) is fmt
    assert Format.parse(fmt) is fmt
    assert Format.of(np.zeros(3, fmt.carrier)) is fmt
    assert fmt.itemsize == np.zeros(1, fmt.carrier).nbytes


@pytest.mark.parametrize("name", ["fp8", "", "float32", None])
def test_an_unknown_format_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ContractError, match="fp32, bf16, fp16"):
        Format.parse(name)


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.int32, np.uint8, ">f4", bool])
def test_an_array_of_no_format_is_refused(dtype: str) -> None:
    with pytest.raises(ContractError, match="no known format"):
        Format.of(np.zeros(2, dtype))
