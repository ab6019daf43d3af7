"""The leaves of a tree as autograd's inputs, and copies of what lies in the weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from relay_eps.errors import RelayError
from relay_eps.relay.leaves import as_inputs, own_memory, required, versions, wants_gradient
from tests.host.relay.plans import plans_of


def test_which_leaves_require_a_gradient() -> None:
    tree = {"a": torch.ones(2, requires_grad=True), "b": [torch.ones(2), None, 3]}
    assert required(tree) == [True, False, False, False]
    assert not wants_gradient("text")


def test_inputs_are_leaves_of_their_own_that_require_a_gradient_where_wanted_and_possible() -> None:
    x = torch.ones(2, requires_grad=True) * 2
    floats, integers, nothing = as_inputs([x, torch.arange(3), None], True)
    assert (floats.is_leaf, floats.requires_grad, floats.data_ptr()) == (True, True, x.data_ptr())
    assert not integers.requires_grad
    assert nothing is None
    assert [leaf.requires_grad for leaf in as_inputs([x, x], [False, True])] == [False, True]
    assert not as_inputs([x], False)[0].requires_grad


def test_versions_count_changes_in_place() -> None:
    x = torch.zeros(2)
    before = versions([x, None, "text"])
    x.view(2)[0] = 1
    assert versions([x, None, "text"]) == [before[0] + 1]


def test_what_lies_in_the_weights_is_copied_and_nothing_else() -> None:
    layer = nn.Linear(3, 2)
    (plan,) = plans_of(layer, [layer])
    x = torch.ones(3)
    weight, view, other, plain = own_memory(plan, [layer.weight, layer.weight.t()[0], x, 5])
    assert weight.data_ptr() != layer.weight.data_ptr()
    assert torch.equal(weight, layer.weight)
    assert torch.equal(view, layer.weight[:, 0])
    assert other is x
    assert plain == 5


def test_the_copy_of_a_weight_still_leads_to_it() -> None:
    layer = nn.Linear(3, 2)
    (plan,) = plans_of(layer, [layer])
    (copy,) = own_memory(plan, [layer.weight])
    (gradient,) = torch.autograd.grad(copy.sum(), [layer.weight])
    assert gradient.eq(1).all()


def test_an_object_that_hides_tensors_is_refused() -> None:
    layer = nn.Linear(3, 2)
    (plan,) = plans_of(layer, [layer])
    assert own_memory(plan, [SimpleNamespace(a=1), object()])
    with pytest.raises(RelayError, match=r"inside a SimpleNamespace.*pass a tuple, list or dict"):
        own_memory(plan, [SimpleNamespace(a=torch.ones(1))])
