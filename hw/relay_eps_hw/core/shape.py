"""What sections and bursts are on the ports of one core: the widths of their addresses and counts."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.lib import data

#: AXI's own limits: beats of a burst, and the bytes whose boundaries no burst crosses.
MOST_BEATS = 256
BOUNDARY = 4096
BEAT_BYTES = (8, 16, 32, 64)
#: Bits of a port's address, and of a number of beats: a section of 2**30 fp32 elements in beats of eight bytes.
ADDRESS_BITS = 64
COUNT_BITS = 30
#: Descriptors that can be in the pipeline at once.
SLOTS = 4
#: Bits of a descriptor's sequence number: enough to tell one in the pipeline from the last one that was.
OWNER_BITS = (2 * SLOTS - 1).bit_length()


def check_beat(beat_bytes: object) -> None:
    """ValueError, with those allowed, for a width in bytes that no port has."""
    if type(beat_bytes) is not int or beat_bytes not in BEAT_BYTES:
        allowed = ", ".join(map(str, BEAT_BYTES))
        raise ValueError(f"beats of {beat_bytes!r} bytes are not supported: use one of {allowed}")


@dataclass(frozen=True)
class Shape:
    """A port's beats and bursts; ValueError, with those allowed, for a beat or a longest burst that no port has.

    Attributes:
        beat_bytes: bytes of a beat, one of `BEAT_BYTES`.
        limit: beats of the longest burst, a power of two that 4 KiB hold.
        address_bits: of the addresses that are used.
        count_bits: of a section's number of beats, and one more.
    """

    beat_bytes: int
    limit: int
    address_bits: int = ADDRESS_BITS
    count_bits: int = COUNT_BITS

    def __post_init__(self) -> None:
        check_beat(self.beat_bytes)
        most = min(MOST_BEATS, BOUNDARY // self.beat_bytes)
        if type(self.limit) is not int or self.limit & (self.limit - 1) or not 1 <= self.limit <= most:
            raise ValueError(
                f"bursts of up to {self.limit!r} beats of {self.beat_bytes} bytes are not supported: "
                f"use a power of two from 1 to {most}, that 4 KiB hold"
            )

    @property
    def beat_bits(self) -> int:
        """Bits of a beat."""
        return 8 * self.beat_bytes

    @property
    def below(self) -> int:
        """Bits of an address within a beat."""
        return self.beat_bytes.bit_length() - 1

    @property
    def place_bits(self) -> int:
        """Bits of an address counted in beats."""
        return self.address_bits - self.below

    @property
    def section(self) -> data.StructLayout:
        """A run of beats.

        Fields:
            place: the address of its first byte, in beats.
            final: the lower bits of its last beat's place: enough of them to know it when it comes, and its place in
                its burst.
            owner (3): the sequence number of the descriptor that it belongs to.
        """
        final = min(max(self.count_bits, self.limit.bit_length()), self.place_bits)
        return data.StructLayout({"place": self.place_bits, "final": final, "owner": OWNER_BITS})

    @property
    def burst(self) -> data.StructLayout:
        """A burst.

        Fields:
            place: the address of its first byte, in beats.
            beats: how many, 1 to ``limit``.
            last (1): it is the section's last one.
            owner (3): as its section has it.
        """
        return data.StructLayout(
            {"place": self.place_bits, "beats": self.limit.bit_length(), "last": 1, "owner": OWNER_BITS}
        )

    def fault(self, streams: int) -> data.StructLayout:
        """The first fault that a half of a port has met.

        Fields:
            found (1): there was one; it stays until it is cleared.
            dead (1): it was that the slave has not answered.
            number: the stream whose burst it was.
            owner (3), place: the burst's.
        """
        return data.StructLayout(
            {
                "found": 1,
                "dead": 1,
                "number": max(streams - 1, 1).bit_length(),
                "owner": OWNER_BITS,
                "place": self.place_bits,
            }
        )
