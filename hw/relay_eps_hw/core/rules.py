"""The rules that `Check` goes by, as logic: what an operation uses, and which numbers a descriptor may hold."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value

from relay_eps_hw.core.sections import READS, WRITES
from relay_eps_hw.interface.codes import Opcode
from relay_eps_hw.interface.descriptors import DESCRIPTOR, STREAMS
from relay_eps_hw.interface.operations import USES, WIRE_IS_OPTIONAL


def uses(m: Module, opcode: Value, first: Value, has_wire: Value) -> tuple[Signal, Signal, Signal]:
    """Masks of what an operation reads (of ``READS``), writes (of ``WRITES``) and uses (of ``STREAMS``).

    A first accumulate does not read the sum. ``has_wire``: the wire copy has an address.
    """
    reads, writes, used = Signal(len(READS)), Signal(len(WRITES)), Signal(len(STREAMS))
    with m.Switch(opcode):
        for operation, (read, written) in USES.items():
            with m.Case(operation):
                for number, name in enumerate(READS):
                    if name in read:
                        not_first = operation is Opcode.ACCUMULATE and name == "m"
                        m.d.comb += reads[number].eq(~first if not_first else 1)
                for number, name in enumerate(WRITES):
                    if name in written:
                        optional = name == "wire" and operation in WIRE_IS_OPTIONAL
                        m.d.comb += writes[number].eq(has_wire if optional else 1)
    for number, name in enumerate(STREAMS):
        is_read = reads[READS.index(name)] if name in READS else 0
        is_written = writes[WRITES.index(name)] if name in WRITES else 0
        m.d.comb += used[number].eq(is_read | is_written)
    return reads, writes, used


def one_of(value: Value, choices: tuple[Opcode, ...]) -> Value:
    """Whether ``value`` is one of these operations."""
    return value.matches(*choices)


def scalar_is_bad(bits: Value, *, may_be_negative: Value) -> Value:
    """Whether a scalar is outside the contract: not finite, subnormal, -0, or negative where it must not be."""
    sign, exponent, fraction = bits[31], bits[23:31], bits[:23]
    small = ~exponent.any() & (fraction.any() | sign)
    return exponent.all() | small | (sign & ~may_be_negative)


def reserved_bits(first_word: int, words: int) -> int:
    """Of so many 32-bit words of a descriptor, from an index on: the bits that have to be 0."""
    mask = (1 << 32 * words) - 1
    for place in DESCRIPTOR:
        low = 8 * place.offset - 32 * first_word
        bits = sum(field.mask for field in place.fields) if place.fields else (1 << place.width) - 1
        if low >= 0:
            mask &= ~(bits << low)
    return mask
