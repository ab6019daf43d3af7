"""Shifters and the count of leading zeros. Each level of a shifter is one multiplexer deep.

What is used more than once is shared through the pipeline, as a signal: an expression is written out at each use.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Value

from relay_eps_hw.floats.pipeline import Pipeline


def shift_left(p: Pipeline, value: Value, count: Value, below: int = 1) -> Value:
    """``value`` moved up by ``count`` times ``below``; as wide as before, zeros come in below."""
    for bit in reversed(range(len(count))):
        value = p.share(value)
        distance = min(below << bit, len(value))
        value = Mux(count[bit], Cat(Const(0, distance), value[: len(value) - distance]), value)
    return value


def shift_right_sticky(p: Pipeline, value: Value, where: Value, distance: int) -> Value:
    """``value``, moved down by ``distance`` where ``where`` is set; its lowest bit gathers all that falls out of it.

    The lowest bit is a sticky bit before and after: once set it stays set.
    """
    value = p.share(value)
    if distance >= len(value):
        return Mux(where, value.any(), value)
    moved = Cat(value[: distance + 1].any(), value[distance + 1 :])
    return Mux(where, moved, value)


def leading_zeros(p: Pipeline, value: Value) -> Value:
    """How many zeros stand above the highest one of ``value``; its width where there is none. A tree of halves."""
    width = len(value)
    if width == 1:
        return ~value
    low_width = 1 << ((width - 1).bit_length() - 1)
    padding = 2 * low_width - width
    if padding:
        return leading_zeros(p, Cat(Const((1 << padding) - 1, padding), value))
    # Halves of equal width make the count in the half and the width of the high half concatenate.
    high, low = p.share(leading_zeros(p, value[low_width:])), p.share(leading_zeros(p, value[:low_width]))
    both = high[-1] & low[-1]
    return Cat(Mux(high[-1], low[:-1], high[:-1]), high[-1] & ~both, both)


def shift_right(
    p: Pipeline, value: Value, amount: Value, keep: int, sticky: Value, below: int = 1
) -> tuple[Value, Value]:
    """``value`` moved down by ``amount``, and ``sticky`` with all that fell out of it.

    Several levels of a shifter in one step: ``amount`` holds some bits of the whole distance, the lowest of weight
    ``below``, so ``below - 1`` more may follow. At the end ``keep`` bits stay; what cannot get among them is cut off
    above, and must be zero.
    """
    value = p.share(value)
    # Piece k falls out where the amount is more than k. The pieces are looked at before they are moved: less logic.
    for k in range((1 << len(amount)) - 1):
        piece = value[k * below : (k + 1) * below]
        if len(piece):
            sticky |= (amount > k) & piece.any()
    for bit in reversed(range(len(amount))):
        distance = below << bit
        value = p.share(value)
        value = Mux(amount[bit], value[distance:], value)[: keep + distance - 1]
    return value, sticky
