"""Levels of shifters. A unit strings them together with registers between; each is one multiplexer deep."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Value


def levels(longest: int) -> tuple[int, ...]:
    """The powers of two, largest first, whose sums are all distances up to ``longest``."""
    return tuple(1 << bit for bit in reversed(range(longest.bit_length())))


def shift_left(value: Value, where: Value, distance: int) -> Value:
    """``value``, moved up by ``distance`` where ``where`` is set; as wide as before, zeros come in below."""
    kept = max(len(value) - distance, 0)
    moved = Cat(Const(0, len(value) - kept), value[:kept])
    return Mux(where, moved, value)


def shift_right_sticky(value: Value, where: Value, distance: int) -> Value:
    """``value``, moved down by ``distance`` where ``where`` is set; its lowest bit gathers all that falls out of it.

    The lowest bit is a sticky bit before and after: once set it stays set.
    """
    if distance >= len(value):
        return Mux(where, value.any(), value)
    moved = Cat(value[: distance + 1].any(), value[distance + 1 :])
    return Mux(where, moved, value)


def normalise_level(value: Value, distance: int) -> tuple[Value, Value]:
    """``value`` moved up by ``distance`` if its top ``distance`` bits are all zero, and whether it was moved."""
    empty = ~value[len(value) - distance :].any()
    return shift_left(value, empty, distance), empty


def leading_zeros(value: Value) -> Value:
    """How many zeros stand above the highest one of ``value``; its width where there is none. A tree of halves."""
    width = len(value)
    if width == 1:
        return ~value
    low_width = 1 << ((width - 1).bit_length() - 1)
    high, low = value[low_width:], value[:low_width]
    # Halves of equal width make the count of the low half and the width of the high half concatenate.
    if len(high) == low_width:
        high_count, low_count = leading_zeros(high), leading_zeros(low)
        high_empty, low_empty = high_count[-1], low_count[-1]
        both = high_empty & low_empty
        count = Mux(high_empty, low_count[:-1], high_count[:-1])
        return Cat(count, high_empty & ~both, both)
    padding = (2 << (width - 1).bit_length() - 1) - width
    return leading_zeros(Cat(Const((1 << padding) - 1, padding), value))


def shift_right(value: Value, amount: Value, keep: int, sticky: Value, below: int = 1) -> tuple[Value, Value]:
    """``value`` moved down by ``amount``, and ``sticky`` with all that fell out of it.

    Several levels of a shifter in one step: ``amount`` holds some bits of the whole distance, the lowest of weight
    ``below``, so ``below - 1`` more may follow. At the end ``keep`` bits stay; what cannot get among them is cut off
    above, and must be zero.
    """
    for bit in reversed(range(len(amount))):
        distance = below << bit
        where = amount[bit]
        sticky |= where & value[:distance].any()
        value = Mux(where, value[distance:], value)[: keep + distance - 1]
    return value, sticky
