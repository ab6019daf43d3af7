"""The EPS contract as tests: subclass `ServerConformance`, and give it a fixture ``make_server``.

Each test makes fresh servers with ``make_server()`` and closes them. Arithmetic is judged by the golden functions, bit
for bit, whatever the server's wire format. What a server does beyond the contract it tests elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.formats import Format
from relay_eps.eps.hyper import AdamHyper
from relay_eps.eps.layout import Section
from relay_eps.errors import ContractError
from tests.host.eps.bits import assert_same_bits, hard_values
from tests.host.eps.conformance_refusals import MakeServer, RefusalConformance
from tests.host.eps.reference import HYPERS, KINDS, SHAPES, Pair, layout, random_call

#: Long enough for any server to have done what it wrongly would do, and what each waiting test costs.
A_WHILE = 0.03


class ServerConformance(RefusalConformance):
    """The tests. ``make_server`` must outlive single examples: give it at least the class's scope."""

    # --- arithmetic and order

    @settings(max_examples=60)
    @given(
        shapes=st.lists(st.sampled_from(SHAPES), min_size=3, max_size=3),
        program=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KINDS)), max_size=25),
        numbers=st.integers(0, 2**32 - 1),
    )
    def test_any_calls_on_several_layers_give_the_golden_bits(
        self,
        make_server: MakeServer,
        shapes: list[tuple[tuple[int, ...], ...]],
        program: list[tuple[int, str]],
        numbers: int,
    ) -> None:
        rng = np.random.default_rng(numbers)
        with make_server() as server:
            pairs = [Pair(server, layout(f"layer.{i}", *shape)) for i, shape in enumerate(shapes)]
            pairs.append(Pair(server, layout("frozen", (7, 3), (5,), trainable=False)))
            for pair in pairs:
                pair.fill(rng)
            for index, kind in program:
                random_call(pairs[index], kind, rng)
            for pair in pairs:
                pair.check()
            assert server.stored_bytes() == sum(pair.reference.stored_bytes() for pair in pairs)
            server.synchronize()

    @pytest.mark.parametrize("fmt", list(Format))
    @pytest.mark.parametrize("shapes", SHAPES, ids=str)
    def test_training_steps_of_every_length_and_gradient_format(
        self, server: EagerParamServer, shapes: tuple[tuple[int, ...], ...], fmt: Format, rng: np.random.Generator
    ) -> None:
        if fmt not in server.capabilities.gradients:
            server.create(layout("layer", (3,)))
            with pytest.raises(ContractError, match="layer"):
                server.fold("layer", np.zeros(32, fmt.carrier), AdamHyper(), first=True)
            return
        pair = Pair(server, layout("layer", *shapes))
        pair.fill(rng)
        for hyper in HYPERS:
            for micro_batch in range(2):
                pair.fold(pair.gradient(rng, fmt), hyper, first=micro_batch == 0, scale=0.5)
            pair.apply(hyper)
            pair.fetch()
            pair.fold_apply(pair.gradient(rng, fmt), hyper, first=True, scale=1.0)
            pair.fetch()
            for micro_batch in range(3):
                pair.accumulate(pair.gradient(rng, fmt), first=micro_batch == 0)
            pair.fold_apply(None, hyper, first=True, scale=-1.0)
        pair.check()

    def test_every_16_bit_gradient_is_folded_exactly(self, server: EagerParamServer) -> None:
        for fmt in server.capabilities.gradients:
            if fmt is not Format.FP32:
                pair = Pair(server, layout(f"layer {fmt.value}", (2**16,)))
                every = np.arange(2**16, dtype=np.uint16).view(fmt.carrier)
                pair.fold(every, AdamHyper(), first=True, scale=1.0)
                pair.accumulate(every, first=True)
                pair.check()

    def test_calls_on_one_layer_take_effect_in_order(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pair = Pair(server, layout("layer", (5000,)))
        for _ in range(10):
            pair.fold(pair.gradient(rng), AdamHyper(lr=0.1), first=True, scale=1.0)
            pair.fetch()
            pair.apply(AdamHyper(lr=0.1))
            pair.fetch()
            pair.write(Section.P, hard_values(rng, pair.layout.size))
            pair.fetch()
            pair.read(Section.V)
        pair.check()

    # --- layers

    def test_a_new_layer_is_zero(self, server: EagerParamServer) -> None:
        Pair(server, layout("layer", (3, 5), (40,))).check()

    def test_layers_come_in_the_order_of_creation(self, server: EagerParamServer) -> None:
        layouts = [layout(name, (2,)) for name in ("z", "a", "m")]
        for one in layouts:
            server.create(one)
        assert server.layers() == ("z", "a", "m")
        assert [server.layout(name) for name in server.layers()] == layouts

    def test_a_name_is_taken_once(self, server: EagerParamServer) -> None:
        server.create(layout("twin", (3,)))
        with pytest.raises(ContractError, match="'twin'"):
            server.create(layout("twin", (4,)))
        assert server.layout("twin") == layout("twin", (3,))

    def test_stored_bytes_are_those_of_the_sections(self, server: EagerParamServer) -> None:
        pairs = [Pair(server, layout(f"layer.{i}", (100, i + 1))) for i in range(3)]
        pairs.append(Pair(server, layout("frozen", (1000,), trainable=False)))
        assert server.stored_bytes() == sum(pair.reference.stored_bytes() for pair in pairs)
        pairs[0].accumulate(np.zeros(pairs[0].layout.size, np.float32), first=True)
        assert server.stored_bytes() == sum(pair.reference.stored_bytes() for pair in pairs)
        server.remove("layer.1")
        assert server.stored_bytes() == sum(pair.reference.stored_bytes() for pair in pairs if pair.name != "layer.1")

    def test_a_removed_layer_is_gone_and_its_name_free(
        self, server: EagerParamServer, rng: np.random.Generator
    ) -> None:
        server.create(layout("other", (3,)))
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        pair.apply(AdamHyper())
        server.remove("layer")
        assert all(ticket.done() for ticket in pair.tickets), "remove waits for outstanding calls"
        assert server.layers() == ("other",)
        with pytest.raises(ContractError, match="'layer'"):
            server.apply("layer", AdamHyper())
        Pair(server, layout("layer", (5,))).check()

    def test_a_frozen_layer_has_weights_and_nothing_else(
        self, server: EagerParamServer, rng: np.random.Generator
    ) -> None:
        pair = Pair(server, layout("frozen", (9, 7), trainable=False))
        pair.fill(rng)
        grad = np.zeros(pair.layout.size, np.float32)
        refused: list[Callable[[], Any]] = [
            lambda: server.fold("frozen", grad, AdamHyper(), first=True),
            lambda: server.fold_apply("frozen", grad, AdamHyper(), first=True),
            lambda: server.fold("frozen", None, AdamHyper(), first=True),
            lambda: server.apply("frozen", AdamHyper()),
            lambda: server.accumulate("frozen", grad, first=True),
            *(lambda s=s: server.read("frozen", s) for s in (Section.M, Section.V, Section.GRAD)),
            *(lambda s=s: server.write("frozen", s, grad) for s in (Section.M, Section.V, Section.GRAD)),
            lambda: server.set_applies("frozen", 3),
        ]
        for call in refused:
            with pytest.raises(ContractError, match="'frozen'"):
                call()
        pair.fetch()
        pair.lease()
        pair.check()
        assert server.stored_bytes() == pair.reference.stored_bytes()

    # --- leases

    def lease_or_skip(self, server: EagerParamServer, layer: str) -> Any:
        if not server.capabilities.leases:
            with pytest.raises(ContractError, match="layer"):
                server.lease(layer)
            pytest.skip("the server has no leases, and says so")
        return server.lease(layer).result()

    def test_a_lease_is_a_read_only_view_of_the_weights(
        self, server: EagerParamServer, rng: np.random.Generator
    ) -> None:
        pair = Pair(server, layout("layer", (3, 3), (50,)))
        pair.fill(rng)
        lease = self.lease_or_skip(server, "layer")
        assert lease.layer == "layer"
        assert lease.array.shape == (pair.layout.size,)
        assert_same_bits(lease.array, pair.reference.weights())
        with pytest.raises(ValueError, match="read-only"):
            lease.array[:] = 0
        lease.release()

    @pytest.mark.parametrize("kind", ["apply", "fold_apply", "write"])
    def test_what_changes_the_weights_waits_for_all_leases(
        self, server: EagerParamServer, rng: np.random.Generator, kind: str
    ) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        one, two = self.lease_or_skip(server, "layer"), server.lease("layer").result()
        before = pair.reference.weights()
        if kind == "write":
            pair.write(Section.P, hard_values(rng, pair.layout.size))
        elif kind == "apply":
            pair.apply(AdamHyper(lr=1.0))
        else:
            pair.fold_apply(pair.gradient(rng), AdamHyper(lr=1.0), first=True, scale=1.0)
        for lease in (one, two):
            with pytest.raises(TimeoutError):
                pair.tickets[-1].result(A_WHILE)
            assert not pair.tickets[-1].done()
            assert_same_bits(lease.array, before, "the leased weights")
            lease.release()
        pair.check()

    def test_a_fold_does_not_wait_for_a_lease(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        with self.lease_or_skip(server, "layer"):
            pair.fold(pair.gradient(rng), AdamHyper(), first=True, scale=1.0)
            pair.accumulate(pair.gradient(rng), first=True)
            pair.fetch()
            pair.check()

    def test_a_lease_blocks_no_other_layer(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        leased, other = Pair(server, layout("leased", (70,))), Pair(server, layout("other", (33,)))
        lease = self.lease_or_skip(server, "leased")
        leased.fold_apply(leased.gradient(rng), AdamHyper(), first=True, scale=1.0)
        leased.fetch()
        other.fold_apply(other.gradient(rng), AdamHyper(), first=True, scale=1.0)
        other.fetch()
        other.check()
        assert not leased.tickets[-1].done()
        lease.release()
        leased.check()

    def test_calls_behind_one_that_waits_keep_their_order(
        self, server: EagerParamServer, rng: np.random.Generator
    ) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        old = self.lease_or_skip(server, "layer")
        pair.apply(AdamHyper(lr=1.0))
        pair.fetch()
        behind = server.lease("layer")
        wanted = pair.reference.weights()
        pair.fold_apply(pair.gradient(rng), AdamHyper(lr=1.0), first=True, scale=1.0)
        assert not behind.done()
        old.release()
        with behind.result() as new:
            assert_same_bits(new.array, wanted, "a lease after an apply")
            assert not pair.tickets[-1].done()
        pair.check()

    def test_releasing_twice_is_harmless(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pair = Pair(server, layout("layer", (70,)))
        once, held = self.lease_or_skip(server, "layer"), server.lease("layer").result()
        once.release()
        once.release()
        pair.fold_apply(pair.gradient(rng), AdamHyper(), first=True, scale=1.0)
        with pytest.raises(TimeoutError):
            pair.tickets[-1].result(A_WHILE)
        held.release()
        pair.check()

    def test_a_leased_layer_is_not_removed(self, server: EagerParamServer) -> None:
        pair = Pair(server, layout("layer", (70,)))
        with self.lease_or_skip(server, "layer"):
            with pytest.raises(ContractError, match=r"'layer'.*release"):
                server.remove("layer")
            pair.apply(AdamHyper())
            # At once: waiting for the apply, which waits for this thread's lease, would never end.
            with pytest.raises(ContractError, match=r"'layer'.*release"):
                server.remove("layer")
        pair.check()
        server.remove("layer")

    # --- applies

    def test_queued_applies_are_counted(self, server: EagerParamServer) -> None:
        pair = Pair(server, layout("layer", (70,)))
        lease = self.lease_or_skip(server, "layer")
        for count in range(1, 4):
            pair.apply(AdamHyper())
            assert server.applies("layer") == count
        lease.release()
        pair.check()

    def test_t_can_be_set_and_corrects_the_bias(self, server: EagerParamServer, rng: np.random.Generator) -> None:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        pair.apply(AdamHyper())
        server.set_applies("layer", 41)
        assert all(ticket.done() for ticket in pair.tickets), "set_applies waits for outstanding calls"
        pair.reference.t = 41
        pair.apply(AdamHyper())
        pair.check()
        assert server.applies("layer") == 42

    def test_t_is_not_negative(self, server: EagerParamServer) -> None:
        server.create(layout("layer", (70,)))
        with pytest.raises(ContractError, match="'layer'"):
            server.set_applies("layer", -1)
        assert server.applies("layer") == 0

    def test_layers_are_counted_apart(self, server: EagerParamServer) -> None:
        one, two = Pair(server, layout("one", (3,))), Pair(server, layout("two", (3,)))
        one.apply(AdamHyper())
        one.apply(AdamHyper())
        two.apply(AdamHyper())
        one.check()
        two.check()
