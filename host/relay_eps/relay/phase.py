"""Where a relay is in its life, and what may be asked of it then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from relay_eps.errors import RelayError, TornStep


class Phase:
    """Idle, stepping, torn or closed."""

    def __init__(self) -> None:
        self._stepping = False
        self._closed = False
        #: Why the weights are no state that training ever had; empty where they are.
        self._torn = ""

    @property
    def torn(self) -> bool:
        return bool(self._torn)

    @property
    def closed(self) -> bool:
        return self._closed

    def require_idle(self, call: str, *, torn: bool = False) -> None:
        """Raise RelayError inside a step or when closed, and TornStep when torn, unless the call mends that."""
        if self._closed:
            raise RelayError(f"{call} was called on a relay that is closed: make a new one from the model")
        if self._stepping:
            raise RelayError(f"{call} was called inside a step: call it between steps")
        if self._torn and not torn:
            raise TornStep(f"{call} is refused: {self._torn}; load a checkpoint")

    def begin_step(self) -> None:
        """A step begins."""
        self._stepping = True

    def end_step(self) -> None:
        """The step is over, well or badly."""
        self._stepping = False

    def tear(self, why: str) -> None:
        """From now on the weights are no state that training ever had, until `mend`."""
        self._torn = why

    def mend(self) -> None:
        """The weights are as they should be."""
        self._torn = ""

    def close(self) -> None:
        """The end."""
        self._closed = True

    @contextmanager
    def whole(self, why: str) -> Iterator[None]:
        """A change that counts only if the block ends well: otherwise the relay is torn."""
        before, self._torn = self._torn, why
        yield
        self._torn = before
