"""The part of the conformance suite about sections, about what is refused at the call, and about closing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.formats import Format
from relay_eps.eps.hyper import AdamHyper
from relay_eps.eps.layout import Section
from relay_eps.errors import ContractError, ServerClosed
from tests.host.eps.bits import same_bits
from tests.host.eps.reference import HYPERS, Pair, layout

MakeServer = Callable[[], EagerParamServer]


class RefusalConformance:
    """See `tests.host.eps.conformance.ServerConformance`, which includes these tests."""

    @pytest.fixture
    def server(self, make_server: MakeServer) -> Iterator[EagerParamServer]:
        with make_server() as server:
            yield server

    # --- sections

    def test_padding_stays_zero(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pair = Pair(server, layout("layer", (3,), (40,)))
        for hyper in HYPERS:
            pair.fill(rng)
            pair.fold_apply(pair.gradient(rng), hyper, first=False, scale=1.0)
            for _ in range(2):
                pair.check()
                for section in (Section.P, Section.M, Section.V, Section.WIRE):
                    padding = server.read("layer", section).result()[pair.reference.padding]
                    assert same_bits(padding, np.zeros_like(padding)), section
                pair.apply(hyper)

    def test_a_sign_bit_in_v_is_refused(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        for bad in (-1.0, -0.0, -1e-45, -np.inf, -np.nan):
            values = np.ones(pair.layout.size, np.float32)
            values[69] = bad
            if np.isnan(bad):
                values.view(np.uint32)[69] |= np.uint32(0x80000000)
            with pytest.raises(ContractError, match=r"'layer'.*sign"):
                server.write("layer", Section.V, values)
        pair.check()

    def test_the_wire_copy_cannot_be_written(self, server: EagerParamServer) -> None:
        server.create(layout("layer", (70,)))
        with pytest.raises(ContractError, match="'layer'"):
            server.write("layer", Section.WIRE, np.zeros(96, np.float32))

    def test_a_read_without_out_gives_an_array_of_its_own(
        self, server: EagerParamServer, rng: np.random.Generator
    ) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        for section in (Section.P, Section.M, Section.V, Section.WIRE):
            server.read("layer", section).result().fill(7)
        pair.check()

    def test_a_read_with_out_gives_out(self, server: EagerParamServer) -> None:
        server.create(layout("layer", (70,)))
        out = np.ones(96, np.float32)
        assert server.read("layer", Section.M, out).result() is out
        assert not out.any()

    def test_a_sum_must_have_been_made(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        refused: list[Callable[[], Any]] = [
            lambda: server.fold("layer", None, AdamHyper(), first=True),
            lambda: server.fold_apply("layer", None, AdamHyper(), first=True),
            lambda: server.accumulate("layer", pair.gradient(rng), first=False),
            lambda: server.read("layer", Section.GRAD),
        ]
        for call in refused:
            with pytest.raises(ContractError, match=r"'layer'.*summed gradient"):
                call()
        pair.check()
        pair.accumulate(pair.gradient(rng), first=True)
        pair.fold_apply(None, AdamHyper(), first=True, scale=1.0)
        pair.check()

    # --- what is refused at the call, with nothing changed

    def test_an_unknown_layer_is_named(self, server: EagerParamServer) -> None:
        server.create(layout("known", (3,)))
        array = np.zeros(32, np.float32)
        calls: list[Callable[[], Any]] = [
            lambda: server.remove("nobody"),
            lambda: server.layout("nobody"),
            lambda: server.fetch("nobody", array),
            lambda: server.lease("nobody"),
            lambda: server.accumulate("nobody", array, first=True),
            lambda: server.fold("nobody", array, AdamHyper(), first=True),
            lambda: server.apply("nobody", AdamHyper()),
            lambda: server.fold_apply("nobody", array, AdamHyper(), first=True),
            lambda: server.read("nobody", Section.P),
            lambda: server.write("nobody", Section.P, array),
            lambda: server.applies("nobody"),
            lambda: server.set_applies("nobody", 1),
            lambda: server.damaged("nobody"),
        ]
        for call in calls:
            with pytest.raises(ContractError, match="'nobody'"):
                call()

    def test_arrays_of_the_wrong_kind_are_refused(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        size = pair.layout.size
        for bad in (
            np.zeros(size - 1, np.float32),
            np.zeros(70, np.float32),
            np.zeros((size, 1), np.float32),
            np.zeros(2 * size, np.float32)[::2],
            np.zeros(size, np.float64),
            np.zeros(size, np.int32),
            np.zeros(size, ">f4"),
            np.zeros(4 * size + 1, np.uint8)[1:].view(np.float32),
        ):
            calls: list[Callable[[Any], Any]] = [
                lambda a: server.fetch("layer", a),
                lambda a: server.accumulate("layer", a, first=True),
                lambda a: server.fold("layer", a, AdamHyper(), first=True),
                lambda a: server.fold_apply("layer", a, AdamHyper(), first=True),
                lambda a: server.read("layer", Section.P, a),
                lambda a: server.write("layer", Section.P, a),
            ]
            for call in calls:
                with pytest.raises(ContractError, match="'layer'"):
                    call(bad)
        for not_an_array in ([0.0] * size, memoryview(bytes(4 * size)), 0.0):
            with pytest.raises(ContractError, match=r"'layer'.*numpy array"):
                server.fold("layer", not_an_array, AdamHyper(), first=True)  # type: ignore[arg-type]
        pair.check()

    def test_a_read_only_out_is_refused(self, server: EagerParamServer) -> None:
        server.create(layout("layer", (70,)))
        fetched = np.zeros(96, server.capabilities.wire.carrier)
        read = np.zeros(96, np.float32)
        fetched.flags.writeable = read.flags.writeable = False
        with pytest.raises(ContractError, match=r"'layer'.*read-only"):
            server.fetch("layer", fetched)
        with pytest.raises(ContractError, match=r"'layer'.*read-only"):
            server.read("layer", Section.P, read)

    def test_an_unknown_section_is_refused(self, server: EagerParamServer) -> None:
        server.create(layout("layer", (70,)))
        with pytest.raises(ContractError, match=r"'layer'.*'q'"):
            server.read("layer", "q")  # type: ignore[arg-type]

    @pytest.mark.parametrize("scale", [float("inf"), float("nan"), 1e39, -1e39, 1e-45, -1e-39])
    def test_a_scale_outside_the_contract_is_refused(
        self, server: EagerParamServer, rng: np.random.Generator, scale: float
    ) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        with pytest.raises(ContractError, match=r"'layer'.*scale"):
            server.fold("layer", pair.gradient(rng), AdamHyper(), first=True, scale=scale)
        with pytest.raises(ContractError, match=r"'layer'.*scale"):
            server.fold_apply("layer", pair.gradient(rng), AdamHyper(), first=True, scale=scale)
        pair.check()

    @pytest.mark.parametrize(
        ("hyper", "name"),
        [
            (AdamHyper(lr=1e-42), "s = "),
            (AdamHyper(lr=1e38, beta1=0.999), "s = "),
            (AdamHyper(eps=1e-40), "eps"),
            (AdamHyper(lr=1e30, weight_decay=1e30), "k = "),
        ],
    )
    def test_an_apply_whose_scalars_fp32_cannot_hold_is_refused(
        self, server: EagerParamServer, rng: np.random.Generator, hyper: AdamHyper, name: str
    ) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        with pytest.raises(ContractError, match=f"'layer'.*{name}"):
            server.apply("layer", hyper)
        with pytest.raises(ContractError, match=f"'layer'.*{name}"):
            server.fold_apply("layer", pair.gradient(rng), hyper, first=True)
        pair.check()

    @pytest.mark.parametrize(
        ("hyper", "name"),
        [(AdamHyper(beta1=1e-42), "b1"), (AdamHyper(v_scale=1e-40), "c2"), (AdamHyper(beta2=1e-39), "b2")],
    )
    def test_a_fold_whose_scalars_fp32_cannot_hold_is_refused(
        self, server: EagerParamServer, rng: np.random.Generator, hyper: AdamHyper, name: str
    ) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        with pytest.raises(ContractError, match=f"'layer'.*{name}"):
            server.fold("layer", pair.gradient(rng), hyper, first=True)
        with pytest.raises(ContractError, match=f"'layer'.*{name}"):
            server.fold_apply("layer", pair.gradient(rng), hyper, first=True)
        pair.check()

    # --- the server itself

    def test_capabilities_say_what_there_is(self, server: EagerParamServer) -> None:
        capabilities = server.capabilities
        assert capabilities.name
        assert Format.FP32 in capabilities.gradients
        formats = {kind.section: kind.format for kind in capabilities.sections}
        assert formats[Section.WIRE] is capabilities.wire
        assert {Section.P, Section.M, Section.V} <= set(formats)

    def test_synchronize_waits_for_everything(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pairs = [Pair(server, layout(f"layer.{i}", (3000,))) for i in range(4)]
        for pair in pairs * 3:
            pair.fold_apply(pair.gradient(rng), AdamHyper(), first=True, scale=1.0)
        server.synchronize()
        assert all(ticket.done() for pair in pairs for ticket in pair.tickets)

    def test_closing_finishes_what_was_asked_for(self, make_server: MakeServer) -> None:
        server = make_server()
        server.create(layout("layer", (3000,)))
        tickets = [server.apply("layer", AdamHyper()) for _ in range(20)]
        out = np.ones(3008, server.capabilities.wire.carrier)
        fetch = server.fetch("layer", out)
        server.close()
        for ticket in tickets:
            ticket.result(0)
        fetch.result(0)
        assert not out.any()

    def test_a_closed_server_refuses_calls_and_can_be_closed_again(self, make_server: MakeServer) -> None:
        server = make_server()
        server.create(layout("layer", (70,)))
        server.close()
        server.close()
        array = np.zeros(96, np.float32)
        calls: list[Callable[[], Any]] = [
            lambda: server.create(layout("new", (3,))),
            lambda: server.remove("layer"),
            server.layers,
            lambda: server.layout("layer"),
            server.stored_bytes,
            lambda: server.fetch("layer", array),
            lambda: server.lease("layer"),
            lambda: server.accumulate("layer", array, first=True),
            lambda: server.fold("layer", array, AdamHyper(), first=True),
            lambda: server.apply("layer", AdamHyper()),
            lambda: server.fold_apply("layer", array, AdamHyper(), first=True),
            lambda: server.read("layer", Section.P),
            lambda: server.write("layer", Section.P, array),
            lambda: server.applies("layer"),
            lambda: server.set_applies("layer", 1),
            lambda: server.damaged("layer"),
            server.synchronize,
        ]
        for call in calls:
            with pytest.raises(ServerClosed):
                call()
