"""What lies between the driver and a board: buffers in the board's memory, and batches that are started and waited for.

A transport knows how bytes reach a board and nothing of what they mean; `relay_eps.fpga.server.FpgaEPS` knows what they
mean and nothing of how they travel. Each transport is used by one thread at a time, but `Transport.close`, which any
thread may call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound="Transport")

#: What no buffer may reach: XRT fails at it.
FOUR_GIB = 1 << 32


@dataclass(frozen=True)
class Bank:
    """A part of a board's memory with a port, or several ports, of its own.

    Attributes:
        name: as the board's tools call it: "DDR", "DDR[0]", "HBM[3]".
        nbytes: what buffers may take of it at most; None where only `Transport.allocate` can tell.
    """

    name: str
    nbytes: int | None = None


@dataclass(frozen=True)
class BoardInfo:
    """What a transport knows of its board before the board was asked.

    Attributes:
        name: for messages, such as "PYNQ-Z2" or "simulated board (2 lanes)".
        banks: all of them; buffers name one by its place.
        cores: for each core, and each of its ports, the banks that the port reaches, by their places.
        build_id: what the files beside the bitstream promise; None where nothing promises one.
        clock_hz: of the core; None where it is not known.
        largest_buffer: bytes that a buffer may have at most.
        patience: seconds that a batch may take before the board is given up.
    """

    name: str
    banks: tuple[Bank, ...]
    cores: tuple[tuple[tuple[int, ...], ...], ...]
    build_id: int | None = None
    clock_hz: float | None = None
    largest_buffer: int = FOUR_GIB - 4096
    patience: float = 30.0


class Buffer(ABC):
    """Bytes in a bank. The host's copy and the board's are two: `flush` and `invalidate` carry the whole buffer over.

    An invalidate drops what was written and not flushed.
    """

    #: In bytes, as the board sees it; on a multiple of 64.
    address: int
    nbytes: int

    @abstractmethod
    def write(self, data: NDArray, offset: int = 0) -> None:
        """Put the bytes of a contiguous array into the host's copy; ValueError where they do not fit."""

    @abstractmethod
    def read(self, out: NDArray, offset: int = 0) -> None:
        """Fill a contiguous, writeable array from the host's copy; ValueError where it asks for too much."""

    @abstractmethod
    def flush(self) -> None:
        """Make the host's copy what the board sees."""

    @abstractmethod
    def invalidate(self) -> None:
        """Make what the board sees the host's copy."""

    @abstractmethod
    def free(self) -> None:
        """Give the memory back; nothing happens the second time. No batch that uses it may be under way."""


class Transport(ABC):
    """The way to one board. What fails raises BoardError, with the board, what was tried and the way out."""

    @property
    @abstractmethod
    def info(self) -> BoardInfo:
        """What is known of the board."""

    @abstractmethod
    def allocate(self, bank: int, nbytes: int) -> Buffer:
        """A new buffer of ``nbytes`` (1 or more) in a bank, with arbitrary contents; BoardMemoryFull without room."""

    @abstractmethod
    def start(self, core: int, batch: Buffer, count: int, records: Buffer) -> None:
        """Start ``count`` descriptors, which lie at the start of ``batch``, on a core that runs none.

        Both buffers were flushed, and lie in a bank of the core's port 0.
        """

    @abstractmethod
    def wait(self, core: int, timeout: float) -> None:
        """Return when the core's batch has ended, well or badly; BoardTimeout after ``timeout`` seconds.

        The records tell how it ended, once they are invalidated.
        """

    @abstractmethod
    def reset(self, core: int) -> None:
        """End a core's batch by a soft reset and wait for that; BoardError where it cannot be had."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the board, with all buffers; nothing happens the second time."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def bytes_of(array: NDArray) -> NDArray[np.uint8]:
    """The bytes of a contiguous array, where they lie; ValueError for another one."""
    if not array.flags.c_contiguous:
        raise ValueError("only a contiguous array has its bytes in order: copy it first")
    return array.reshape(-1).view(np.uint8)


def check_range(buffer: Buffer, nbytes: int, offset: int) -> None:
    """ValueError for bytes that do not lie in the buffer."""
    if not 0 <= offset <= offset + nbytes <= buffer.nbytes:
        raise ValueError(f"bytes {offset} to {offset + nbytes} do not lie in a buffer of {buffer.nbytes}")
