"""Storage: sections take the bytes that are accounted for, and a layer that does not fit leaves no trace."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps.eps import AdamHyper, GoldenEPS, HostEPS, LayerLayout, Section, TensorSpec
from relay_eps.eps.arithmetic import GoldenArithmetic
from relay_eps.errors import ContractError
from tests.host.eps.bits import assert_same_bits
from tests.host.eps.reference import Pair, layout


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    block = np.empty(nbytes + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + nbytes]


def test_h26_sections_come_from_the_allocator_in_exactly_their_bytes() -> None:
    asked: list[int] = []

    def allocate(nbytes: int) -> NDArray[np.uint8]:
        asked.append(nbytes)
        block = _aligned(nbytes)
        block.fill(0xAB)
        return block

    with GoldenEPS(wire="bf16", allocate=allocate) as server:
        pair = Pair(server, layout("layer", (3,), (70,)))
        nothing = Pair(server, layout("nothing", (0,)))
        assert sorted(asked) == [2 * pair.layout.size] + 3 * [4 * pair.layout.size]
        pair.check()
        pair.accumulate(np.zeros(pair.layout.size, np.float32), first=True)
        assert server.stored_bytes() == sum(asked)
        pair.accumulate(np.zeros(pair.layout.size, np.float32), first=True)
        assert server.stored_bytes() == sum(asked), "a sum is allocated once"
        pair.check()
        nothing.check()


@pytest.mark.parametrize("error", [MemoryError(), OSError("no pages"), RuntimeError("CUDA error: out of memory")])
def test_a_layer_that_cannot_be_held_leaves_no_trace(error: Exception) -> None:
    left = 2

    def allocate(nbytes: int) -> NDArray[np.uint8]:
        nonlocal left
        if not left:
            raise error
        left -= 1
        return _aligned(nbytes)

    with GoldenEPS(allocate=allocate) as server:
        with pytest.raises(ContractError, match=r"'layer'.* 12,288 bytes") as caught:
            server.create(layout("layer", (1024,)))
        assert caught.value.__cause__ is error
        assert server.layers() == ()
        assert server.stored_bytes() == 0
        left = 3
        pair = Pair(server, layout("layer", (1024,)))
        with pytest.raises(ContractError, match=r"'layer'.* 4,096 bytes"):
            server.accumulate("layer", np.zeros(1024, np.float32), first=True)
        with pytest.raises(ContractError, match="no summed gradient"):
            server.fold("layer", None, AdamHyper(), first=True)
        pair.check()


def test_memory_that_does_not_start_on_64_bytes_is_refused() -> None:
    with (
        GoldenEPS(allocate=lambda n: _aligned(n + 4)[4:]) as server,
        pytest.raises(ContractError, match=r"'layer'.*multiple of 64"),
    ):
        server.create(layout("layer", (1024,)))


def test_a_leased_array_outlives_the_server() -> None:
    server = GoldenEPS()
    server.create(layout("layer", (70,)))
    server.write("layer", Section.P, np.ones(96, np.float32)).result()
    array = server.lease("layer").result().array
    server.close()
    del server
    gc.collect()
    assert_same_bits(array[:70], np.ones(70, np.float32))


def test_h9_ten_thousand_tensors_are_one_sweep() -> None:
    calls: list[str] = []

    class Counting(GoldenArithmetic):
        def fold(self, *args: Any, **kwargs: Any) -> None:
            calls.append("fold")
            super().fold(*args, **kwargs)

    many = LayerLayout("layer", tuple(TensorSpec(f"t{i}", (1,)) for i in range(10_000)))
    with HostEPS(Counting(), name="counting") as server:
        server.create(many)
        server.fold("layer", np.zeros(many.size, np.float32), AdamHyper(), first=True).result()
    assert calls == ["fold"]
