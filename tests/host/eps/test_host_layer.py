"""Damage: a call that fails half way has its layer refused until it is rewritten, and nobody misses the error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps.eps import AdamHyper, Format, HostEPS, Section
from relay_eps.eps.arithmetic import GoldenArithmetic
from relay_eps.errors import ContractError, LayerDamaged, RelayEpsError, ServerClosed
from tests.host.eps.reference import Pair, layout

OPERATIONS = ("fold", "apply", "fold_apply", "accumulate", "convert")


class FaultyArithmetic(GoldenArithmetic):
    """The golden model, whose next operation of the name ``fault`` spoils what it writes, and raises."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in OPERATIONS:
            return found

        def operation(*args: Any, **kwargs: Any) -> Any:
            self.gate.wait(10)
            if name != self.fault:
                return found(*args, **kwargs)
            self.fault = None
            args[1 if name == "convert" else 0][:1] = 99
            raise OSError("memory went bad")

        return operation

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def arithmetic() -> FaultyArithmetic:
    return FaultyArithmetic()


@pytest.fixture(params=list(Format))
def server(request: pytest.FixtureRequest, arithmetic: FaultyArithmetic) -> Iterator[HostEPS]:
    with HostEPS(arithmetic, name="faulty", wire=request.param) as one:
        yield one
        arithmetic.gate.set()
        _forget_errors(one)


def _forget_errors(server: HostEPS) -> None:
    """Meet the errors that a test caused on purpose, so that closing does not warn of them."""
    while True:
        try:
            return server.synchronize()
        except ServerClosed:
            return None
        except RelayEpsError:
            continue


def call_of(server: HostEPS, kind: str, grad: NDArray[Any]) -> Callable[[], Any]:
    return {
        "fold": lambda: server.fold("layer", grad, AdamHyper(), first=True),
        "apply": lambda: server.apply("layer", AdamHyper()),
        "fold_apply": lambda: server.fold_apply("layer", grad, AdamHyper(), first=True),
        "accumulate": lambda: server.accumulate("layer", grad, first=True),
        "convert": lambda: server.write("layer", Section.M, grad),
    }[kind]


@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_call_that_fails_half_way_damages_its_layer(
    server: HostEPS, arithmetic: FaultyArithmetic, rng: np.random.Generator, kind: str
) -> None:
    pair, other = Pair(server, layout("layer", (70,))), Pair(server, layout("other", (40,)))
    for one in (pair, other):
        one.fill(rng)
        one.accumulate(one.gradient(rng), first=True)
    pair.check()
    arithmetic.fault = kind
    with pytest.raises(LayerDamaged, match=r"'layer'.*memory went bad.*p, m, v") as caught:
        call_of(server, kind, pair.gradient(rng))().result()
    assert isinstance(caught.value.__cause__, OSError)
    assert "memory went bad" in (server.damaged("layer") or "")
    out = np.zeros(pair.layout.size, server.capabilities.wire.carrier)
    refused: list[Callable[[], Any]] = [
        *(call_of(server, name, pair.gradient(rng)) for name in OPERATIONS if name != "convert"),
        lambda: server.fetch("layer", out),
        lambda: server.lease("layer"),
        lambda: server.read("layer", Section.P),
        lambda: server.fold("layer", None, AdamHyper(), first=True),
        lambda: server.write("layer", Section.GRAD, pair.gradient(rng)),
    ]
    for call in refused:
        with pytest.raises(LayerDamaged, match=r"'layer'.*memory went bad"):
            call()
    other.fold_apply(other.gradient(rng), AdamHyper(), first=True, scale=1.0)
    other.check()


def test_a_damaged_layer_is_sound_once_p_m_and_v_are_rewritten(
    server: HostEPS, arithmetic: FaultyArithmetic, rng: np.random.Generator
) -> None:
    pair = Pair(server, layout("layer", (70,)))
    pair.accumulate(pair.gradient(rng), first=True)
    server.synchronize()
    arithmetic.fault = "apply"
    with pytest.raises(LayerDamaged):
        server.apply("layer", AdamHyper()).result()
    assert server.applies("layer") == 0
    del pair.reference.sections[Section.GRAD]
    values = np.ones(pair.layout.size, np.float32)
    for section in (Section.M, Section.P):
        pair.write(section, values)
        server.synchronize()
        assert server.damaged("layer") is not None
    pair.write(Section.V, values)
    server.synchronize()
    assert server.damaged("layer") is None
    server.set_applies("layer", 5)
    pair.reference.t = 5
    with pytest.raises(ContractError, match="summed gradient"):
        server.fold("layer", None, AdamHyper(), first=True)
    pair.accumulate(pair.gradient(rng), first=True)
    pair.fold_apply(None, AdamHyper(), first=True, scale=1.0)
    pair.check()


def test_a_repair_that_fails_starts_again(
    server: HostEPS, arithmetic: FaultyArithmetic, rng: np.random.Generator
) -> None:
    pair = Pair(server, layout("layer", (70,)))
    values = np.ones(pair.layout.size, np.float32)
    arithmetic.fault = "apply"
    with pytest.raises(LayerDamaged):
        server.apply("layer", AdamHyper()).result()
    server.write("layer", Section.P, values).result()
    server.write("layer", Section.M, values).result()
    arithmetic.fault = "convert"
    with pytest.raises(LayerDamaged, match="write failed half way"):
        server.write("layer", Section.V, values).result()
    server.write("layer", Section.V, values).result()
    assert server.damaged("layer") is not None
    for section in (Section.P, Section.M):
        server.write("layer", section, values).result()
    assert server.damaged("layer") is None
    server.read("layer", Section.P).result()


def test_a_damaged_frozen_layer_needs_p_alone(server: HostEPS, arithmetic: FaultyArithmetic) -> None:
    pair = Pair(server, layout("layer", (70,), trainable=False))
    arithmetic.fault = "convert"
    with pytest.raises(LayerDamaged, match="write p again"):
        server.write("layer", Section.P, np.ones(pair.layout.size, np.float32)).result()
    pair.write(Section.P, np.ones(pair.layout.size, np.float32))
    server.synchronize()
    pair.check()


def test_calls_queued_behind_the_damage_fail_too_and_repairs_queued_behind_it_count(
    server: HostEPS, arithmetic: FaultyArithmetic, rng: np.random.Generator
) -> None:
    pair = Pair(server, layout("layer", (70,)))
    values = np.ones(pair.layout.size, np.float32)
    arithmetic.gate.clear()
    arithmetic.fault = "fold_apply"
    out = np.zeros(pair.layout.size, server.capabilities.wire.carrier)
    failed = server.fold_apply("layer", pair.gradient(rng), AdamHyper(), first=True)
    behind: list[Any] = [
        server.apply("layer", AdamHyper()),
        server.fetch("layer", out),
        server.lease("layer"),
        server.accumulate("layer", pair.gradient(rng), first=True),
        server.fold("layer", None, AdamHyper(), first=True),
    ]
    assert server.applies("layer") == 2
    for section in (Section.P, Section.M, Section.V):
        pair.write(section, values)
    pair.apply(AdamHyper())
    pair.tickets.pop()
    arithmetic.gate.set()
    for ticket in [failed, *behind]:
        with pytest.raises(LayerDamaged, match=r"'layer'.*memory went bad"):
            ticket.result(10)
    # The apply behind the repair was counted as the third when it was made, and is the only one that was done.
    server.synchronize()
    assert server.applies("layer") == 1
    assert server.damaged("layer") is None


@pytest.mark.parametrize("look", ["fetch", "read"])
def test_a_look_that_fails_leaves_the_layer_as_it_was(
    server: HostEPS, arithmetic: FaultyArithmetic, rng: np.random.Generator, look: str
) -> None:
    pair = Pair(server, layout("layer", (70,)))
    pair.fill(rng)
    server.synchronize()
    arithmetic.fault = "convert"
    out = np.zeros(pair.layout.size, server.capabilities.wire.carrier)
    ticket = server.fetch("layer", out) if look == "fetch" else server.read("layer", Section.M)
    with pytest.raises(RelayEpsError, match=r"'layer'.*memory went bad.*as it was"):
        ticket.result()
    pair.check()


def test_what_the_arithmetic_refuses_leaves_the_layer_as_it_was(rng: np.random.Generator) -> None:
    class Refusing(GoldenArithmetic):
        def fold(self, *args: Any, **kwargs: Any) -> None:
            raise ContractError("these arrays share memory")

    with HostEPS(Refusing(), name="refusing") as server:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        with pytest.raises(ContractError, match=r"'layer'.*share memory"):
            server.fold("layer", pair.gradient(rng), AdamHyper(), first=True).result()
        pair.check()


def test_a_damaged_layer_can_be_removed_and_made_again(server: HostEPS, arithmetic: FaultyArithmetic) -> None:
    pair = Pair(server, layout("layer", (70,)))
    arithmetic.fault = "apply"
    with pytest.raises(LayerDamaged):
        server.apply("layer", AdamHyper()).result()
    server.remove("layer")
    Pair(server, pair.layout).check()


def test_synchronize_raises_the_first_error_that_nobody_waited_for(
    server: HostEPS, arithmetic: FaultyArithmetic
) -> None:
    for name in ("layer", "second"):
        server.create(layout(name, (70,)))
    arithmetic.fault = "apply"
    server.apply("layer", AdamHyper())
    server.apply("second", AdamHyper())
    with pytest.raises(LayerDamaged, match="'layer'"):
        server.synchronize()
    server.synchronize()
    assert server.damaged("second") is None


def test_closing_warns_of_an_error_that_nobody_waited_for(arithmetic: FaultyArithmetic) -> None:
    server = HostEPS(arithmetic, name="faulty")
    server.create(layout("layer", (70,)))
    arithmetic.fault = "apply"
    server.apply("layer", AdamHyper())
    with pytest.warns(RuntimeWarning, match=r"faulty was closed after an error: .*'layer'"):
        server.close()
    assert arithmetic.closed == 1
    server.close()
    assert arithmetic.closed == 1
