"""What a host-memory server knows about one layer beside its arrays: its queue, its soundness, its summed gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from relay_eps.eps.layout import Section
from relay_eps.eps.queues import LayerQueue
from relay_eps.eps.storage import LayerStore
from relay_eps.errors import ContractError, LayerDamaged, RelayEpsError

T = TypeVar("T")


class HostLayer:
    """A stored layer with its queue.

    ``damage`` and ``sum_present`` say how the finished calls left the layer; ``sum_promised`` how the calls made so far
    will leave it.
    """

    def __init__(self, store: LayerStore) -> None:
        self.store = store
        self.layout = store.layout
        self.name = store.layout.name
        self.queue = LayerQueue(self.name)
        self.damage: str | None = None
        self.sum_promised = False
        self.sum_present = False
        self.removed = False
        self._unwritten: set[Section] = set()

    def guard(
        self,
        what: str,
        work: Callable[[], T],
        *,
        changes: bool = True,
        repairs: Section | None = None,
        needs_sum: bool = False,
    ) -> Callable[[], T]:
        """``work`` as the dispatcher runs it: refused on an unfit layer, and its failure accounted for.

        A failure of a call that ``changes`` the layer leaves it damaged. ``repairs`` is the section that the call
        rewrites as a whole, which is allowed, and counts, on a damaged layer.
        """

        def run() -> T:
            try:
                self.refuse_if_unfit(repairs=repairs)
            except LayerDamaged:
                self.sum_promised = False
                raise
            if needs_sum and not self.sum_present:
                raise ContractError(
                    f"layer {self.name!r}: {what} needs a summed gradient, which was lost or never made"
                )
            try:
                value = work()
            except ContractError as error:
                # What an arithmetic refuses, it refuses before it changes anything.
                raise ContractError(f"layer {self.name!r}: {what}: {error}") from error
            except BaseException as error:
                raise self._failure(what, error, changes) from error
            if repairs is not None:
                self._repaired(repairs)
            return value

        return run

    def promise_sum(self) -> None:
        """A call that makes the summed gradient is about to be queued; raises ContractError where memory is short."""
        self.store.add_sum()
        self.sum_promised = True

    def keep_promise_of_sum(self) -> None:
        """The summed gradient is there."""
        self.sum_promised = self.sum_present = True

    def refuse_if_unfit(self, *, repairs: Section | None = None) -> None:
        """Raises LayerDamaged for a damaged layer, unless the call repairs it; ContractError for a removed one."""
        if self.removed:
            raise ContractError(f"layer {self.name!r} was removed")
        if self.damage is not None and repairs not in self._owned():
            raise LayerDamaged(f"layer {self.name!r} is refused: {self.damage}; {self._remedy()}")

    def _owned(self) -> tuple[Section, ...]:
        return (Section.P, Section.M, Section.V) if self.layout.trainable else (Section.P,)

    def _remedy(self) -> str:
        return f"write {', '.join(s.value for s in self._owned())} again, as from a checkpoint"

    def _failure(self, what: str, error: BaseException, changes: bool) -> RelayEpsError:
        cause = f"{what} failed ({type(error).__name__}: {error})"
        if not changes:
            return RelayEpsError(f"layer {self.name!r}: {cause}; the layer is as it was")
        self.damage = cause.replace("failed", "failed half way", 1)
        self._unwritten = set(self._owned())
        self.sum_present = self.sum_promised = False
        return LayerDamaged(f"layer {self.name!r} is damaged: {self.damage}; {self._remedy()}")

    def _repaired(self, section: Section) -> None:
        self._unwritten.discard(section)
        if not self._unwritten:
            self.damage = None
