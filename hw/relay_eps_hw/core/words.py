"""Words of 64 bits, in which descriptors come and records go: two of 32 bits, the lower one first."""

from __future__ import annotations

from amaranth.hdl import Value

from relay_eps_hw.interface.layout import Field

WORD_BITS = 64
#: A word is a row of so many lanes: it goes through `Unpack` and `Pack` like elements.
WORD_LANES = WORD_BITS // 32


def halves_of(word: Value) -> tuple[Value, Value]:
    """The lower one and the upper one."""
    return word[:32], word[32:]


def bits_of(word: Value, field: Field) -> Value:
    """A field's bits of the word that has it."""
    return word[field.low : field.low + field.width]
