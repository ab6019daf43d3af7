"""Calls that return at once and take effect in order: tickets, a queue for each layer, leases, and one dispatcher.

A server hands every call to a `Dispatcher`, which runs them one by one on a thread of its own, in the order in which
they arrived. A call that changes the weights of a leased layer is parked, with the later calls on that layer behind
it, while other layers go on.

The bookkeeping of a call is straight-line code that ends in one atomic `SimpleQueue.put`, so that a Ctrl-C in the
calling thread leaves the call either made or not made.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from numpy.typing import NDArray

from relay_eps.eps.contract import Lease, Ticket
from relay_eps.errors import ServerClosed

T = TypeVar("T")


class QueuedTicket(Ticket[T]):
    """The ticket of a call that waits for its turn."""

    def __init__(self) -> None:
        self._finished = threading.Event()
        self._value: T
        self._error: BaseException | None = None
        #: Whether somebody has met the error; if not, `Dispatcher.first_error` reports it.
        self.error_seen = False

    def done(self) -> bool:
        return self._finished.is_set()

    def result(self, timeout: float | None = None) -> T:
        if not self._finished.wait(timeout):
            raise TimeoutError(f"the call is not done after {timeout} s")
        if self._error is not None:
            self.error_seen = True
            raise self._error
        return self._value

    def finish(self, value: T) -> None:
        """The call succeeded."""
        self._value = value
        self._finished.set()

    def fail(self, error: BaseException) -> None:
        """The call raised ``error``."""
        self._error = error
        self._finished.set()


class LeaseTicket(QueuedTicket[Lease]):
    """The ticket of a lease. Thrown away before the lease was taken, as by Ctrl-C in `result`, it gives it back."""

    #: The lease, from its granting until somebody takes it. On the class, for the destructor of a half-made ticket.
    granted: Lease | None = None

    def result(self, timeout: float | None = None) -> Lease:
        lease = super().result(timeout)
        self.granted = None
        return lease

    def __del__(self) -> None:
        if self.granted is not None:
            self.granted.release()


class LayerQueue:
    """The order of one layer's calls. Its fields belong to the `Dispatcher`, and are read under its lock."""

    def __init__(self, layer: str) -> None:
        self.layer = layer
        #: Calls made and not finished.
        self.outstanding = 0
        #: Applies that were made or are queued: the contract's t.
        self.applies = 0
        #: Leases that were granted and not returned.
        self.leases = 0
        #: Calls that wait for the leases, and those behind them; only the dispatcher's thread touches it.
        self.parked: deque[_Call] = deque()


class _Call:
    """One call on its way through the dispatcher."""

    __slots__ = ("applies", "queue", "run", "ticket", "waits_for_leases")

    def __init__(
        self, queue: LayerQueue, run: Callable[[], Any], ticket: QueuedTicket[Any], waits_for_leases: bool, applies: int
    ) -> None:
        self.queue = queue
        self.run = run
        self.ticket = ticket
        self.waits_for_leases = waits_for_leases
        self.applies = applies


class Dispatcher:
    """Runs calls in order on one daemon thread. Knows nothing about what they do.

    ``on_stop`` runs on that thread after the last call. The dispatcher must not be referred to by a cycle through its
    server: the server's finalizer calls `stop`, and at interpreter exit every living dispatcher is stopped.
    """

    def __init__(self, name: str, on_stop: Callable[[], None] = lambda: None) -> None:
        #: Guards every counter here and in the queues. Re-entrant: a finalizer may run while it is held.
        self.lock = threading.RLock()
        self._idle = threading.Condition(self.lock)
        # None is only a knock: a lease was returned, or the dispatcher is to stop.
        self._arrivals: SimpleQueue[_Call | None] = SimpleQueue()
        self._parked: dict[LayerQueue, None] = {}
        self._outstanding = 0
        self._failures: deque[QueuedTicket[Any]] = deque()
        self._closed: str | None = None
        self._on_stop = on_stop
        self._thread = threading.Thread(target=self._loop, name=f"relay-eps {name}", daemon=True)
        _living.add(self)
        self._thread.start()

    # --- from any thread

    def refuse_if_closed(self) -> None:
        """Raises ServerClosed once `stop` was called."""
        if self._closed is not None:
            raise ServerClosed(self._closed)

    def submit(
        self,
        queue: LayerQueue,
        run: Callable[[], T],
        *,
        waits_for_leases: bool = False,
        applies: int = 0,
        ticket: QueuedTicket[T] | None = None,
    ) -> QueuedTicket[T]:
        """Queue ``run`` behind the layer's earlier calls; its value or error arrives in the ticket.

        ``applies`` is added to the queue's count at once, and taken back should the call fail.
        """
        if ticket is None:
            ticket = QueuedTicket()
        call = _Call(queue, run, ticket, waits_for_leases, applies)
        with self.lock:
            self.refuse_if_closed()
            # No call between these lines and put: that is where Python looks for signals.
            queue.outstanding += 1
            queue.applies += applies
            self._outstanding += 1
            self._arrivals.put(call)
        return ticket

    def lease(
        self, queue: LayerQueue, view: Callable[[], NDArray[Any]], check: Callable[[], None]
    ) -> QueuedTicket[Lease]:
        """Lease the array that ``view`` makes, after the layer's earlier calls and where ``check`` does not raise.

        An idle layer is leased on the spot, without a turn of the dispatcher.
        """
        ticket = LeaseTicket()

        def grant() -> Lease:
            check()
            lease = Lease(queue.layer, view(), lambda: self._release(queue))
            with self.lock:
                # Together, with no call between them: from here on the ticket gives the lease back if nobody takes it.
                queue.leases += 1
                ticket.granted = lease
            return lease

        with self.lock:
            self.refuse_if_closed()
            if queue.outstanding == 0:
                ticket.finish(grant())
                return ticket
        return self.submit(queue, grant, ticket=ticket)

    def synchronize(self) -> None:
        """Wait until no call is outstanding."""
        with self.lock:
            self.refuse_if_closed()
            while self._outstanding:
                self._idle.wait()

    def first_error(self) -> BaseException | None:
        """The oldest error that nobody has met, once; None where there is none."""
        with self.lock:
            while self._failures:
                ticket = self._failures.popleft()
                if not ticket.error_seen and ticket._error is not None:
                    ticket.error_seen = True
                    return ticket._error
        return None

    def stop(self, reason: str = "the server is closed", *, wait: bool = True) -> None:
        """Take no more calls; finish those that were made, but fail those that wait for a lease; then end the thread.

        ``wait`` waits for the thread to end. Stopping twice is harmless.
        """
        with self.lock:
            if self._closed is None:
                self._closed = reason
            self._arrivals.put(None)
        if wait and self._thread is not threading.current_thread():
            self._thread.join()

    def _release(self, queue: LayerQueue) -> None:
        with self.lock:
            queue.leases -= 1
            self._arrivals.put(None)

    # --- on the dispatcher's thread

    def _loop(self) -> None:
        try:
            while (call := self._next()) is not None:
                self._execute(call)
                # An idle dispatcher holds on to nobody's arrays.
                del call
        finally:
            self._on_stop()

    def _next(self) -> _Call | None:
        """The next call that may run; None at the end."""
        while True:
            if (call := self._resume()) is not None:
                return call
            if self._closed is not None and self._arrivals.empty():
                self._fail_parked()
                return None
            call = self._arrivals.get()
            if call is None:
                continue
            queue = call.queue
            if not queue.parked and not (call.waits_for_leases and queue.leases):
                return call
            queue.parked.append(call)
            self._parked[queue] = None

    def _resume(self) -> _Call | None:
        """The first parked call that need not wait any more."""
        for queue in self._parked:
            if queue.parked[0].waits_for_leases and queue.leases:
                continue
            call = queue.parked.popleft()
            if not queue.parked:
                del self._parked[queue]
            return call
        return None

    def _execute(self, call: _Call) -> None:
        try:
            value = call.run()
        except BaseException as error:
            # Whatever it is, it belongs to the ticket's holder.
            self._count_off(call, failed=True)
            call.ticket.fail(error)
        else:
            self._count_off(call, failed=False)
            call.ticket.finish(value)

    def _count_off(self, call: _Call, *, failed: bool) -> None:
        """Before the ticket is done, so that whoever waited for it finds the layer idle."""
        with self.lock:
            call.queue.outstanding -= 1
            self._outstanding -= 1
            if failed:
                call.queue.applies -= call.applies
                while self._failures and self._failures[0].error_seen:
                    self._failures.popleft()
                self._failures.append(call.ticket)
            if not self._outstanding:
                self._idle.notify_all()

    def _fail_parked(self) -> None:
        for queue in self._parked:
            for call in queue.parked:
                error = ServerClosed(
                    f"layer {queue.layer!r}: the server was closed while a lease was out, and this call waited for it"
                )
                self._count_off(call, failed=True)
                call.ticket.fail(error)
            queue.parked.clear()
        self._parked.clear()

    # --- after a fork

    def _disown(self) -> None:
        """In a forked child there is no dispatcher thread, and the lock may be held by a thread that is not there."""
        self.lock = threading.RLock()
        self._idle = threading.Condition(self.lock)
        self._outstanding = 0
        self._closed = "the server belongs to the parent process: make one in this process"


_living: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def _stop_all() -> None:
    # Daemon threads that wake up inside a kernel while the interpreter goes away would crash it: end them first.
    for dispatcher in list(_living):
        dispatcher.stop("the interpreter is exiting")


def _disown_all() -> None:
    for dispatcher in list(_living):
        dispatcher._disown()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
