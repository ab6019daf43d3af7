"""Mini-batches are cut in order, and every sample has its weight in the mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_eps.errors import RelayError
from relay_eps.relay import Whole
from relay_eps.relay.batch import joined, split
from tests.host.relay.following import compare_state, make_reference, make_relay
from tests.host.relay.models import MLP, Batch

IGNORED = -100


@given(st.integers(1, 40), st.none() | st.integers(1, 50))
def test_h22_h43_every_sample_is_in_one_micro_batch_whatever_the_sizes(n: int, micro_batch: int | None) -> None:
    x, side = torch.arange(n), {"mask": torch.arange(n) * 2}
    micros, samples = split((x, None, "plain"), x * 3, side, micro_batch)
    assert samples == n
    assert [m.index for m in micros] == list(range(len(micros)))
    assert torch.cat([m.inputs[0] for m in micros]).equal(x)
    assert torch.cat([m.targets for m in micros]).equal(x * 3)
    assert torch.cat([m.side["mask"] for m in micros]).equal(x * 2)
    assert all(m.inputs[1:] == (None, "plain") for m in micros)
    sizes = [len(m.targets) for m in micros]
    assert all(size == (micro_batch or n) for size in sizes[:-1])
    assert [m.weight for m in micros] == [float(np.float32(size / n)) for size in sizes]


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 6))
def test_h21_weights_count_the_labels_that_are_not_ignored(ignored: list[bool], micro_batch: int) -> None:
    targets = torch.tensor([IGNORED if i else 1 for i in ignored])
    x = torch.arange(len(ignored))
    by_label, _ = split(x, targets, None, micro_batch, IGNORED)
    by_function, _ = split(x, targets, None, micro_batch, lambda part: int((part != IGNORED).sum()))
    counts = [int((part != IGNORED).sum()) for part in targets.split(micro_batch)]
    expected = [(i, float(np.float32(c / sum(counts)))) for i, c in enumerate(counts) if c]
    assert [(m.index, m.weight) for m in by_label] == expected
    assert [(m.index, m.weight) for m in by_function] == expected


def test_labels_are_counted_in_every_tensor_of_the_targets() -> None:
    targets = {"a": torch.tensor([0, IGNORED]), "b": [torch.tensor([[0, 0], [0, IGNORED]]), None, 3]}
    micros, _ = split(torch.zeros(2), targets, None, 1, IGNORED)
    assert [m.weight for m in micros] == [0.75, 0.25]


def test_what_is_marked_whole_goes_to_every_micro_batch() -> None:
    mask = torch.ones(3, 3)
    micros, _ = split((torch.zeros(5, 2), Whole(mask)), Whole("targets"), {"m": [Whole(mask)]}, 2)
    for m in micros:
        assert m.inputs[1] is mask
        assert m.side["m"][0] is mask
        assert m.targets == "targets"


def test_a_single_micro_batch_is_the_callers_own_tensor() -> None:
    x = torch.zeros(4, 2, requires_grad=True)
    assert split(x, None, None, 4)[0][0].inputs is x
    assert split(x, None, None, None)[0][0].inputs is x


@pytest.mark.parametrize(
    ("inputs", "targets", "side", "says"),
    [
        (torch.zeros(0, 3), torch.zeros(0), None, "mini-batch is empty"),
        (torch.tensor(1.0), None, None, r"no dimensions: wrap .* in Whole"),
        ((None, "text"), None, None, "hold no tensor"),
        (torch.zeros(4, 2), torch.zeros(3), None, r"shape \(3,\) in target does not have the batch's 4 samples"),
        (torch.zeros(4), torch.zeros(4), {"mask": torch.zeros(2, 4)}, r"\(2, 4\) in side input 'mask'.*Whole"),
        ([torch.zeros(4), torch.zeros(())], None, None, r"shape \(\) in input"),
    ],
)
def test_h43_tensors_without_the_batchs_samples_are_refused(inputs: Any, targets: Any, side: Any, says: str) -> None:
    with pytest.raises(RelayError, match=says):
        split(inputs, targets, side, 2)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(RelayError, match="gave -1 for micro-batch 1"):
        split(torch.zeros(4), torch.tensor([0, 0, -1, 0]), None, 2, lambda part: int(part.min()))


def test_outputs_are_joined_leaf_by_leaf() -> None:
    outputs: list[Any] = [{"a": torch.ones(2, 3), "b": (None, 5)}, {"a": torch.zeros(1, 3), "b": (None, 5)}]
    whole = joined(outputs)
    assert whole["a"].equal(torch.cat([torch.ones(2, 3), torch.zeros(1, 3)]))
    assert whole["b"] == (None, 5)
    assert joined([torch.tensor(3.0)]) == 3.0


# --- through the relay


def masked_loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, targets, ignore_index=IGNORED)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    micro_batch=st.integers(1, 5),
    seed=st.integers(0, 2**16),
    ignored=st.sampled_from([0.0, 0.3, 0.7]),
)
def test_h21_any_split_of_any_masked_batch_is_plain_pytorchs(
    sizes: list[int], micro_batch: int, seed: int, ignored: float
) -> None:
    plain = make_reference(MLP, micro_batch=micro_batch, count=lambda part: int((part != IGNORED).sum()))
    plain.loss = masked_loss
    with make_relay(MLP, micro_batch=micro_batch) as relay:
        for n in sizes:
            batch = MLP.batch(seed, n)
            hidden = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < ignored
            targets = torch.where(hidden, IGNORED, batch.targets)
            result = relay.step(batch.inputs, targets, masked_loss, count=IGNORED)
            assert result.skipped is bool(hidden.all())
            if result.skipped:
                # Where nothing counts there is nothing to compare: the reference would divide by zero.
                assert result.loss == 0
                plain.steps += 1
            else:
                assert result.loss == plain.step(Batch(batch.inputs, targets)).loss
            compare_state(relay, plain)


def test_h21_a_batch_in_which_nothing_counts_is_skipped_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with make_relay(MLP, micro_batch=2) as relay:
        before = relay.state_dict()
        targets = torch.full((5,), IGNORED)
        result = relay.step(MLP.batch(0, 5).inputs, targets, masked_loss, count=IGNORED)
        assert (result.skipped, result.loss, result.micro_batches, result.samples) == (True, 0.0, 0, 5)
        assert (relay.steps_done, relay.steps_skipped) == (1, 1)
        assert all(torch.equal(before[name], value) for name, value in relay.state_dict().items())
        assert relay.evaluate(MLP.batch(0, 5).inputs, targets, masked_loss, count=IGNORED) == 0.0
    assert "step 0 was skipped: nothing in its mini-batch counts" in caplog.text
