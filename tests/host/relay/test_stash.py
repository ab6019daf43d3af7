"""Values between a layer's runs wait on the device or on the host, and come back as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from relay_eps.relay.stash import Stash
from tests.host.relay.plans import Linked, linears


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize(
    "leaf",
    [
        torch.arange(6.0).view(2, 3),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.arange(4, dtype=torch.int64),
        torch.tensor([0.1, -2.5, 3e38]).bfloat16(),
        torch.zeros(0, 4),
        torch.arange(6.0).view(2, 3).t(),
        torch.ones(1, 3).expand(4, 3),
        None,
        "text",
        2.5,
    ],
    ids=str,
)
def test_h25_anything_comes_back_as_it_was(leaf: Any, on_host: bool) -> None:
    with Linked(linears(2, 2)) as linked:
        stash = Stash(linked.link, on_host=on_host)
        stash.put("key", [leaf, 7])
        for _ in range(2):
            back, seven = stash.get("key")
            assert seven == 7
            if isinstance(leaf, torch.Tensor):
                assert torch.equal(back, leaf)
                assert back.dtype == leaf.dtype
            else:
                assert back is leaf


@pytest.mark.parametrize("on_host", [False, True])
def test_what_is_kept_has_no_graph(on_host: bool) -> None:
    with Linked(linears(2, 2)) as linked:
        stash = Stash(linked.link, on_host=on_host)
        stash.put(0, [torch.ones(2, requires_grad=True) * 2])
        assert not stash.get(0)[0].requires_grad


def test_on_the_device_a_value_is_the_same_memory_on_the_host_a_copy() -> None:
    x = torch.ones(3)
    with Linked(linears(2, 2)) as linked:
        for on_host in (False, True):
            stash = Stash(linked.link, on_host=on_host)
            stash.put(0, [x])
            assert (stash.get(0)[0].data_ptr() == x.data_ptr()) is not on_host


def test_values_are_forgotten_one_by_one_or_all() -> None:
    class Counting:
        """Offloads by keeping the tensor; notes what is forgotten."""

        device = torch.device("cpu")

        def __init__(self) -> None:
            self.forgotten: list[Any] = []

        def offload(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor

        def load(self, handle: torch.Tensor) -> torch.Tensor:
            return handle

        def forget(self, handle: torch.Tensor) -> None:
            self.forgotten.append(float(handle))

    link: Any = Counting()
    stash = Stash(link, on_host=True)
    for i in range(4):
        stash.put(i, [torch.tensor(float(i)), None])
    assert float(stash.pop(1)[0]) == 1
    assert not stash.has(1)
    stash.drop(2)
    stash.drop("unknown")
    assert link.forgotten == [1, 2]
    assert stash.has(3)
    stash.clear()
    assert not stash.has(3)
    assert sorted(link.forgotten) == [0, 1, 2, 3]
