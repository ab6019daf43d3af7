"""Queues: calls run in order, a leased layer parks its own calls alone, errors reach the tickets."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_eps.eps.queues import Dispatcher, LayerQueue, QueuedTicket
from relay_eps.errors import ServerClosed


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    one = Dispatcher("test")
    yield one
    one.stop()


def lease(dispatcher: Dispatcher, queue: LayerQueue) -> QueuedTicket[Any]:
    return dispatcher.lease(queue, lambda: np.zeros(1), lambda: None)


def give_back(ticket: QueuedTicket[Any]) -> None:
    """Release a lease that was granted; one that waits behind a parked call is given back by being dropped."""
    if ticket.done():
        ticket.result().release()


def failing(error: BaseException) -> Any:
    def run() -> None:
        raise error

    return run


@settings(max_examples=50)
@given(
    program=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["call", "waiting call", "lease", "release"])), max_size=40
    )
)
def test_every_layer_runs_in_order_whatever_is_leased(program: list[tuple[int, str]]) -> None:
    dispatcher = Dispatcher("test")
    queues = [LayerQueue(str(i)) for i in range(3)]
    log: list[list[int]] = [[], [], []]
    ran_while_leased: list[int] = []
    held: list[list[QueuedTicket[Any]]] = [[], [], []]
    made: list[list[int]] = [[], [], []]
    for number, (index, kind) in enumerate(program):
        queue = queues[index]
        if kind == "release":
            if held[index]:
                give_back(held[index].pop(0))
        elif kind == "lease":
            held[index].append(lease(dispatcher, queue))
        else:

            def run(index: int = index, number: int = number, waits: bool = kind == "waiting call") -> None:
                log[index].append(number)
                if waits and queues[index].leases:
                    ran_while_leased.append(number)

            made[index].append(number)
            dispatcher.submit(queue, run, waits_for_leases=kind == "waiting call")
    while any(held):
        for tickets in held:
            if tickets:
                tickets.pop(0).result(10).release()
    dispatcher.synchronize()
    dispatcher.stop()
    assert log == made
    assert not ran_while_leased


def test_layers_that_wait_for_nothing_run_in_order_of_arrival(dispatcher: Dispatcher) -> None:
    queues = [LayerQueue(str(i)) for i in range(3)]
    log: list[int] = []
    for number in range(60):
        dispatcher.submit(queues[number * 7 % 3], partial(log.append, number))
    dispatcher.synchronize()
    assert log == list(range(60))


def test_parked_calls_go_before_those_that_came_later(dispatcher: Dispatcher) -> None:
    one, other = LayerQueue("one"), LayerQueue("other")
    log: list[str] = []
    held = lease(dispatcher, one).result()
    dispatcher.submit(one, lambda: log.append("parked"), waits_for_leases=True)
    dispatcher.submit(one, lambda: log.append("behind it"))
    gate = threading.Event()
    busy = dispatcher.submit(other, lambda: gate.wait(10))
    for _ in range(3):
        dispatcher.submit(other, lambda: log.append("later"))
    held.release()
    gate.set()
    assert busy.result()
    dispatcher.synchronize()
    assert log == ["parked", "behind it", "later", "later", "later"]


def test_an_idle_layer_is_leased_on_the_spot(dispatcher: Dispatcher) -> None:
    gate = threading.Event()
    busy, idle = LayerQueue("busy"), LayerQueue("idle")
    dispatcher.submit(busy, lambda: gate.wait(10))
    assert lease(dispatcher, idle).done()
    assert not lease(dispatcher, busy).done()
    gate.set()


def test_a_value_or_an_error_reaches_the_ticket(dispatcher: Dispatcher) -> None:
    queue = LayerQueue("layer")
    assert dispatcher.submit(queue, lambda: 42).result() == 42
    ticket = dispatcher.submit(queue, failing(KeyError("mine")))
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            ticket.result()
    assert ticket.done()
    assert dispatcher.submit(queue, lambda: 43).result() == 43


def test_applies_are_counted_at_once_and_uncounted_when_they_fail(dispatcher: Dispatcher) -> None:
    queue = LayerQueue("layer")
    gate = threading.Event()
    dispatcher.submit(queue, lambda: gate.wait(10), applies=1)
    failed = dispatcher.submit(queue, failing(ValueError("mine")), applies=1)
    assert queue.applies == 2
    gate.set()
    with pytest.raises(ValueError, match="mine"):
        failed.result()
    assert queue.applies == 1
    assert queue.outstanding == 0


def test_the_first_error_is_the_oldest_that_nobody_has_met(dispatcher: Dispatcher) -> None:
    queue = LayerQueue("layer")
    errors = [ValueError(i) for i in range(3)]
    tickets = [dispatcher.submit(queue, failing(error)) for error in errors]
    with suppress(ValueError):
        tickets[0].result()
    dispatcher.synchronize()
    assert [dispatcher.first_error() for _ in range(3)] == [errors[1], errors[2], None]


def test_a_timeout_leaves_the_call_as_it_was(dispatcher: Dispatcher) -> None:
    gate = threading.Event()
    ticket = dispatcher.submit(LayerQueue("layer"), lambda: gate.wait(10))
    with pytest.raises(TimeoutError):
        ticket.result(0.01)
    assert not ticket.done()
    gate.set()
    assert ticket.result()


def test_a_finished_call_is_not_held_on_to(dispatcher: Dispatcher) -> None:
    class Big:
        pass

    big = Big()
    alive = weakref.ref(big)
    assert dispatcher.submit(LayerQueue("layer"), partial(id, big)).result() == id(big)
    del big
    dispatcher.submit(LayerQueue("other"), lambda: None).result()
    gc.collect()
    assert alive() is None


def test_h39_a_lease_dropped_before_it_was_taken_is_given_back(dispatcher: Dispatcher) -> None:
    queue = LayerQueue("layer")
    ticket = lease(dispatcher, queue)
    assert queue.leases == 1
    del ticket
    gc.collect()
    assert queue.leases == 0
    ticket = lease(dispatcher, queue)
    taken = ticket.result()
    del ticket
    gc.collect()
    assert queue.leases == 1
    taken.release()


def test_a_dropped_lease_that_was_not_granted_yet_is_given_back(dispatcher: Dispatcher) -> None:
    queue = LayerQueue("layer")
    gate = threading.Event()
    dispatcher.submit(queue, lambda: gate.wait(10))
    # Nobody keeps the ticket.
    lease(dispatcher, queue)
    gate.set()
    dispatcher.submit(queue, lambda: None, waits_for_leases=True).result(10)
    assert queue.leases == 0


def test_ctrl_c_in_a_waiting_thread_leaves_the_order_sound(dispatcher: Dispatcher) -> None:
    queue = LayerQueue("layer")
    held = lease(dispatcher, queue).result()
    waiting = dispatcher.submit(queue, lambda: "done", waits_for_leases=True, applies=1)
    behind = lease(dispatcher, queue)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        behind.result(10)
    timer.join()
    assert (queue.outstanding, queue.applies, queue.leases) == (2, 1, 1)
    held.release()
    assert waiting.result(10) == "done"
    behind.result(10).release()
    assert (queue.outstanding, queue.applies, queue.leases) == (0, 1, 0)


def test_stopping_finishes_calls_but_those_that_wait_for_a_lease() -> None:
    stopped = threading.Event()
    dispatcher = Dispatcher("test", on_stop=stopped.set)
    leased, free = LayerQueue("leased"), LayerQueue("free")
    held = lease(dispatcher, leased).result()
    parked = [
        dispatcher.submit(leased, lambda: None, waits_for_leases=True, applies=1),
        dispatcher.submit(leased, lambda: None),
    ]
    done = [dispatcher.submit(free, lambda: 1) for _ in range(5)]
    dispatcher.stop()
    dispatcher.stop()
    assert stopped.is_set()
    assert [ticket.result(0) for ticket in done] == [1] * 5
    for ticket in parked:
        with pytest.raises(ServerClosed, match="'leased'"):
            ticket.result(0)
    assert leased.applies == 0
    held.release()
    with pytest.raises(ServerClosed):
        dispatcher.submit(free, lambda: 1)
    with pytest.raises(ServerClosed):
        lease(dispatcher, free)


def test_a_lease_returned_while_stopping_lets_its_calls_run() -> None:
    dispatcher = Dispatcher("test")
    leased, free = LayerQueue("leased"), LayerQueue("free")
    held = lease(dispatcher, leased).result()
    parked = dispatcher.submit(leased, lambda: "ran", waits_for_leases=True)
    dispatcher.submit(free, held.release)
    dispatcher.stop()
    assert parked.result(0) == "ran"


def test_many_threads_lose_no_call(dispatcher: Dispatcher) -> None:
    queues = [LayerQueue(str(i)) for i in range(3)]
    counts = [0, 0, 0]

    def add(index: int) -> None:
        counts[index] += 1

    def work() -> None:
        for number in range(300):
            queue = queues[number % 3]
            dispatcher.submit(queue, partial(add, number % 3), waits_for_leases=number % 2 == 0, applies=1)
            if number % 5 == 0:
                lease(dispatcher, queue).result(10).release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dispatcher.synchronize()
    assert counts == [400, 400, 400]
    assert [(q.outstanding, q.applies, q.leases) for q in queues] == [(0, 400, 0)] * 3
