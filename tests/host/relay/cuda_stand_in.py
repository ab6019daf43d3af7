"""Stand-ins for CUDA's streams and events, on tensors that really lie in host memory.

Copies happen at once, so the numbers say nothing about order. What the stand-ins keep is what each stream is known to
come after: `Stream.after` holds every event whose work is done before whatever the stream is given next.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


class Event:
    """A point in a stream's work; ``after`` are the events that come before it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.after = frozenset(stream.after)

    def synchronize(self) -> None:
        pass


class Stream:
    """A stream with a name of its own."""

    def __init__(self, device: Any = None, name: str = "") -> None:
        self.name = name
        self.after: set[Event] = set()

    def wait_event(self, event: Event) -> None:
        self.after |= {event, *event.after}

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self) -> Event:
        event = Event(self)
        self.after.add(event)
        return event

    def synchronize(self) -> None:
        pass


class Runtime:
    """A CUDA runtime that locks all pages, or none."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if not self.code:
            self.locked[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.locked.pop(address, None)
        return 0


class StandIn:
    """What stands in for ``torch.cuda``; each thread has its own current stream, as there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, lock_code: int = 0) -> None:
        self.computing = Stream(name="computing")
        self.runtime = Runtime(lock_code)
        self._local = threading.local()
        for name, value in {
            "Stream": Stream,
            "current_stream": lambda device=None: self.current,
            "stream": self._stream,
            "device": self._device,
            "cudart": lambda: self.runtime,
            "synchronize": lambda device=None: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @property
    def current(self) -> Stream:
        return getattr(self._local, "stream", self.computing)

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self._local.stream = self.current, stream
        try:
            yield
        finally:
            self._local.stream = before

    @contextmanager
    def _device(self, device: Any) -> Iterator[None]:
        yield
