"""Weights reach a CPU where they lie, and are leased while a layer uses them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relay_eps.eps import AdamHyper, Format
from relay_eps.eps.layout import LayerLayout, TensorSpec
from relay_eps.relay.link import from_numpy, tensor_views, to_numpy, unbind
from tests.host.relay.plans import Linked, linears


def test_parameters_are_views_of_the_store() -> None:
    with Linked(linears(3, 4, 2)) as linked:
        assert linked.holds(0)
        assert linked.holds(1)
        for plan in linked.plans:
            with linked.server.lease(plan.name).result() as lease:
                assert plan.trained[0].data_ptr() == lease.array.ctypes.data
        assert linked.link.resident_bytes == 0


def test_an_apply_waits_while_the_layer_is_held_and_is_seen_when_it_comes_back() -> None:
    with Linked(linears(3, 4, 2)) as linked:
        link, (plan, other) = linked.link, linked.plans
        link.acquire(plan)
        gradient = np.zeros(linked.server.layout(plan.name).size, np.float32)
        ticket = linked.server.fold_apply(plan.name, gradient, AdamHyper(weight_decay=1.0, lr=0.5), first=True)
        with pytest.raises(TimeoutError):
            ticket.result(0.05)
        assert linked.holds(0)
        link.release(plan)
        ticket.result(5)
        link.acquire(plan)
        assert torch.equal(plan.trained[0].detach(), linked.weights[0][0] * 0.5)
        assert linked.holds(other.index)


def test_a_prefetch_is_one_lease_however_often_it_is_asked_for() -> None:
    with Linked(linears(3, 4, 2)) as linked:
        link, (plan, _) = linked.link, linked.plans
        for _ in range(3):
            link.prefetch(plan)
        link.acquire(plan)
        link.prefetch(plan)
        link.acquire(plan)
        link.release(plan)
        linked.server.apply(plan.name, AdamHyper()).result(5)


@pytest.mark.parametrize("held", ["acquire", "prefetch"])
def test_abort_gives_everything_back(held: str) -> None:
    with Linked(linears(3, 4, 2)) as linked:
        for plan in linked.plans:
            getattr(linked.link, held)(plan)
        linked.link.abort()
        for plan in linked.plans:
            linked.server.apply(plan.name, AdamHyper()).result(5)


def test_gradients_leave_from_where_they_lie() -> None:
    with Linked(linears(3, 4, 2)) as linked:
        buffer = torch.arange(5.0)
        host = linked.link.to_host(buffer, linked.link.mark())
        assert host.is_buffer
        assert host.array.ctypes.data == buffer.data_ptr()


def test_offloaded_activations_are_copies() -> None:
    with Linked(linears(3, 4, 2)) as linked:
        x = torch.arange(6.0).view(2, 3).t()
        handle = linked.link.offload(x)
        x += 1
        back = linked.link.load(handle)
        assert torch.equal(back, torch.arange(6.0).view(2, 3).t())
        assert back.stride() == x.stride(), "kernels choose their order of summing by it"
        back += 1
        assert torch.equal(linked.link.load(handle), torch.arange(6.0).view(2, 3).t())
        linked.link.forget(handle)


def test_without_storage_a_parameter_keeps_its_shape_and_reads_as_nan() -> None:
    with Linked(linears(3, 4, 2)) as linked:
        (eps,) = linked.plans[0].eps
        unbind(eps, torch.device("cpu"), torch.float16)
        assert [tuple(p.shape) for p in eps.parameters] == [(4, 3), (4,)]
        assert all(p.isnan().all() for p in eps.parameters)
        assert sum(p.untyped_storage().nbytes() for p in eps.parameters) <= 4


@pytest.mark.parametrize("fmt", list(Format))
def test_carriers_and_tensors_share_memory_and_bits(fmt: Format) -> None:
    array = np.arange(256, dtype=np.uint16).view(fmt.carrier) if fmt.itemsize == 2 else np.arange(256, dtype=np.float32)
    tensor = from_numpy(array)
    assert tensor.data_ptr() == array.ctypes.data
    back = to_numpy(tensor)
    assert back.dtype == fmt.carrier
    assert back.ctypes.data == array.ctypes.data
    if fmt is Format.BF16:
        assert torch.equal(tensor[1:3].float(), torch.tensor([2.0**-133, 2.0**-132]))


def test_a_read_only_array_is_taken_without_a_warning() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    assert from_numpy(array).equal(torch.zeros(3))


def test_views_are_the_layouts_tensors() -> None:
    layout = LayerLayout("l", (TensorSpec("a", (2, 3)), TensorSpec("b", ()), TensorSpec("c", (0, 4))))
    a, b, c = tensor_views(layout, torch.arange(96.0))
    assert torch.equal(a, torch.arange(6.0).view(2, 3))
    assert float(b) == 32
    assert tuple(c.shape) == (0, 4)
