"""What a core is built with."""

from __future__ import annotations

from dataclasses import dataclass

from relay_eps_hw.core.shape import Shape
from relay_eps_hw.interface.descriptors import STREAMS
from relay_eps_hw.lane.beat import check_lanes

#: Which port each of `STREAMS` is on, by the number of ports. Descriptors and records are on port 0.
ARRANGEMENTS = {
    1: (0, 0, 0, 0, 0),
    2: (0, 0, 1, 1, 0),
    4: (0, 1, 2, 3, 0),
    5: (0, 1, 2, 3, 4),
}
#: Beats for which synthesis takes block RAM.
BLOCK_RAM_ROWS = 256


@dataclass(frozen=True)
class CoreConfig:
    """A core's size and what it is connected to; ValueError, with what is possible, for what does not work together.

    Attributes:
        lanes: 1, 2, 4, 8 or 16.
        ports: AXI ports: 1 for all streams, 2 (g, m and wire; v and p), 4 (g and wire; m; v; p) or 5, one a stream.
        beat_bytes: bytes of a beat of a port, 8 to 64.
        burst_beats: the longest burst; 16 is what Zynq's ports take.
        address_bits: of the ports, 32 to 64. Sections beyond are refused.
        latency: clocks from an address to its data that the queues cover without a gap.
        timeout: clocks without an answer, a power of two, after which a port is dead.
        build_id: any 64 bits, that the host finds in a register.
    """

    lanes: int
    ports: int
    beat_bytes: int
    burst_beats: int = 16
    address_bits: int = 64
    latency: int = 128
    timeout: int = 1 << 20
    build_id: int = 0

    def __post_init__(self) -> None:
        check_lanes(self.lanes)
        if type(self.ports) is not int or self.ports not in ARRANGEMENTS:
            allowed = ", ".join(map(str, ARRANGEMENTS))
            raise ValueError(f"{self.ports!r} ports are not supported: use one of {allowed}")
        _check_range("address_bits", self.address_bits, 32, 64)
        # A shape refuses beats and bursts that no port has.
        Shape(self.beat_bytes, self.burst_beats)
        _check_range("latency", self.latency, 1, 4096)
        _check_range("build_id", self.build_id, 0, (1 << 64) - 1)
        _check_range("timeout", self.timeout, 1 << 6, 1 << 30)
        if self.timeout & (self.timeout - 1):
            raise ValueError(f"timeout = {self.timeout} is not supported: use a power of two")
        if self.timeout < 2 * self.latency:
            raise ValueError(f"timeout = {self.timeout} is near the latency of {self.latency} clocks: use a longer one")

    @property
    def shape(self) -> Shape:
        """Of the ports."""
        return Shape(self.beat_bytes, self.burst_beats, self.address_bits)

    @property
    def read_rows(self) -> int:
        """Beats that the queue of a reading stream holds: what arrives in the latency, and two bursts."""
        return _power_of_two(self.latency + 2 * self.burst_beats)

    @property
    def write_rows(self) -> int:
        """Beats that the queue of a writing stream holds: bursts that wait for their turn, and one that is filled.

        As many as a block RAM has: fewer would be made of LUTs.
        """
        return _power_of_two(max(4 * self.burst_beats, BLOCK_RAM_ROWS))

    @property
    def outstanding(self) -> int:
        """Bursts that a port may have under way: what fills the latency, and as many again for short ones."""
        return _power_of_two(max(8, 2 * self.latency // self.burst_beats + 2))

    @property
    def port_of(self) -> dict[str, int]:
        """The port of each stream."""
        return dict(zip(STREAMS, ARRANGEMENTS[self.ports], strict=True))


def _power_of_two(least: int) -> int:
    """The smallest one that is not less."""
    return 1 << (least - 1).bit_length()


def _check_range(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} = {value!r} is not supported: use {least} to {most}")
