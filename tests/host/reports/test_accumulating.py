"""Accumulating, clipping, scaling: what users of the nearest systems reported, and what happens here instead.

The names follow public reports, in the order in which this project lists them. H14: torchtitan issue 990, torchtune
issue 1934. H15: PyTorch issue 148532, torchtune issue 1977, axolotl issue 3058. H16: DeepSpeed issue 7292. H17:
DeepSpeed pull requests 7967, 7981. H18: PyTorch issue 73784, verl issue 93. H19: DeepSpeed issues 643, 931, 5779. H20:
accelerate issue 4242, transformers issue 11106. H21: torchtune pull request 1875, transformers issue 35203, mlx-lm
pull request 1544. H22: DeepSpeed issue 326, pull request 5118.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from relay_eps.eps import AdamHyper, Format, GoldenEPS, LayerLayout, SoftwareEPS, TensorSpec
from relay_eps.eps.formats import narrow, widen
from relay_eps.eps.layout import Section
from relay_eps.errors import NonFiniteGradient, RelayError
from relay_eps.relay import LossScale, ModelledLink, Relay
from tests.host.eps.bits import assert_same_bits
from tests.host.relay.following import assert_unchanged, follow, make_reference, make_relay, take_step, whole_state
from tests.host.relay.models import CASES, GROUPS, MLP, SIDES, TIED, Case, case, frozen, mlp, untied, vectors
from tests.host.relay.servers import RecordingServer

FROZEN = case("frozen within a layer", frozen(mlp, "0.bias", "1.2.weight"), vectors)

#: Every place where weights and stash can wait.
PLACES: dict[str, dict[str, Any]] = {
    "leased": {},
    "stash on the host": {"stash": "host"},
    "slots": {"link": ModelledLink()},
    "slots, stash on the host, delays": {"link": ModelledLink(jitter=0.001), "stash": "host"},
}
PLACED = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


def reference_of(case: Case, **shared: Any) -> Any:
    """The plain loop; for tied weights, one that sums in the relay's order."""
    return make_reference(*untied(case), **shared) if case is TIED else make_reference(case, **shared)


# --- H14


@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("loss_scale", [None, 2.0**10])
@pytest.mark.parametrize("mode", ["exact", "adama"])
@PLACED
def test_H14_clipping_that_is_asked_for_happens_or_is_refused(
    place: dict[str, Any], mode: str, loss_scale: float | None, micro_batch: int | None
) -> None:
    max_norm = 0.05
    more = {**place, "mode": mode, "micro_batch": micro_batch, "max_grad_norm": max_norm}
    if loss_scale is not None:
        more["loss_scale"] = LossScale(loss_scale)
    model = MLP.make()
    if mode == "adama":
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(RelayError, match="cannot clip"):
            make_relay(MLP, model, **more)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        return
    with RecordingServer() as server, make_relay(MLP, model, server=server, **more) as relay:
        result = take_step(relay, MLP, 0, 12)
        assert result.grad_norm is not None
        assert result.grad_norm > max_norm, "the clipping has something to do"
        norm, most = folded_norm(server), max_norm * (1 + 1e-5)
        assert 0.99 * max_norm < norm <= most


def folded_norm(server: RecordingServer) -> float:
    """The 2-norm, in float64, of everything that was folded since the last look, as it was scaled."""
    sums: dict[str, Any] = {}
    total = 0.0
    for call in server.take():
        if call.what == "accumulate":
            assert call.first, "the device sums: one gradient a step arrives"
            sums[call.layer] = call.grad
        else:
            assert call.what == "fold_apply"
            total += float(((widen(sums.pop(call.layer)).astype(np.float64) * call.scale) ** 2).sum())
    assert not sums, "what was summed was folded"
    return float(np.sqrt(total))


def test_H14_a_limit_that_clips_nothing_or_everything_is_refused() -> None:
    for max_norm in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(RelayError, match="max_grad_norm"):
            make_relay(MLP, max_grad_norm=max_norm)


# --- H15


class WriteOnly(RecordingServer):
    """Lets nothing but weights out during a step: whoever wants a norm must take it before."""

    closed_to_readers = False

    def read(self, layer: str, section: Section, out: Any = None) -> Any:
        assert not self.closed_to_readers, f"{section.value} of {layer} was read back"
        return super().read(layer, section, out)


@PLACED
@pytest.mark.parametrize("case", [MLP, SIDES, TIED, FROZEN], ids=str)
def test_H15_norms_are_taken_where_the_gradients_are_and_equal_torchs(case: Case, place: dict[str, Any]) -> None:
    plain = reference_of(case, micro_batch=5, max_grad_norm=0.05)
    with WriteOnly() as server, make_relay(case, server=server, micro_batch=5, max_grad_norm=0.05, **place) as relay:
        for step in range(3):
            server.closed_to_readers = True
            result = take_step(relay, case, step, 12)
            server.closed_to_readers = False
            assert result.grad_norm == plain.step(case.batch(step, 12)).norm


# --- H16


@pytest.mark.parametrize("loss_scale", [None, 2.0**12])
@pytest.mark.parametrize("max_norm", [0.01, 0.3, 2.0, 1e4])
@pytest.mark.parametrize("case", [MLP, GROUPS, TIED, FROZEN], ids=str)
def test_H16_the_reported_norm_is_the_norm_of_what_is_applied(
    case: Case, max_norm: float, loss_scale: float | None
) -> None:
    scale = None if loss_scale is None else LossScale(loss_scale)
    more: dict[str, Any] = {"micro_batch": 5, "max_grad_norm": max_norm, "loss_scale": scale}
    with RecordingServer() as server, make_relay(case, server=server, **more) as relay:
        for step in range(3):
            result = take_step(relay, case, step, 12)
            assert result.grad_norm is not None
            coefficient = min(1.0, max_norm / (result.grad_norm + 1e-6))
            assert folded_norm(server) == pytest.approx(result.grad_norm * coefficient, rel=1e-5)


# --- H17, H18

COUNTS = (1, 2, 3, 4, 6, 12)
SMOOTH = case("no dropout", lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5)), vectors)


@pytest.mark.parametrize("count", COUNTS)
@PLACED
def test_H17_every_count_of_micro_batches_equals_the_full_batch(place: dict[str, Any], count: int) -> None:
    # To the bit it is plain PyTorch's accumulation; and that is the full batch's gradient, but for rounding.
    follow(SMOOTH, micro_batch=12 // count, sizes=(12, 12), **place)
    batch = SMOOTH.batch(0, 12)
    _, full = make_reference(SMOOTH).gradients(batch)
    with RecordingServer() as server, make_relay(SMOOTH, server=server, micro_batch=12 // count, **place) as relay:
        assert take_step(relay, SMOOTH, 0, 12).micro_batches == count
        for name, gradients in server.take_gradients().items():
            assert len(gradients) == 1
            np.testing.assert_allclose(gradients[0], full[name][0], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("count", COUNTS)
@PLACED
def test_H17_H18_no_micro_batch_is_lost_and_none_overwrites_another(place: dict[str, Any], count: int) -> None:
    # AdamA's m is linear in the gradients: whatever the count, it is that of the full batch.
    _, full = make_reference(SMOOTH).gradients(SMOOTH.batch(0, 12))
    c1 = AdamHyper().fold_scalars().c1
    more: dict[str, Any] = {"micro_batch": 12 // count, "mode": "adama", **place}
    with RecordingServer() as server, make_relay(SMOOTH, server=server, **more) as relay:
        take_step(relay, SMOOTH, 0, 12)
        for eps in relay.eps_layers:
            m = server.read(eps.name, Section.M).result()
            for slot in eps.layout.slots:
                got = m[slot.start : slot.stop].reshape(slot.spec.shape)
                np.testing.assert_allclose(got, c1 * full[slot.spec.name][0], rtol=1e-4, atol=1e-8)
            made = [call for call in server.calls if call.layer == eps.name]
            assert [c.first for c in made] == [True] + [False] * (count - 1)
            assert [c.what for c in made] == ["fold"] * (count - 1) + ["fold_apply"]


@pytest.mark.parametrize("case", [SMOOTH, MLP, TIED, SIDES], ids=str)
@pytest.mark.parametrize("more", [{"mode": "adama"}, {"max_grad_norm": 0.05}], ids=["adama", "deferred"])
def test_H18_the_next_mini_batch_starts_from_nothing(case: Case, more: dict[str, Any]) -> None:
    follow(
        case,
        micro_batch=5,
        sizes=(12, 3, 12),
        reference=reference_of(case, micro_batch=5, **more),
        link=ModelledLink(),
        stash="host",
        **more,
    )


@pytest.mark.parametrize("make", [GoldenEPS, lambda: SoftwareEPS(threads=2)], ids=["golden", "software"])
@given(seed=st.integers(0, 2**32 - 1), firsts=st.lists(st.booleans(), max_size=6), fmt=st.sampled_from(list(Format)))
@settings(max_examples=25)
def test_H18_a_server_adds_what_is_not_the_first(
    make: Callable[[], Any], seed: int, firsts: list[bool], fmt: Format
) -> None:
    layout = LayerLayout("layer", (TensorSpec("w", (33, 31)), TensorSpec("b", (5,))))
    rng = np.random.default_rng(seed)
    total: Any = None
    with make() as server:
        server.create(layout)
        for first in [True, *firsts]:
            gradient = np.zeros(layout.size, np.float32)
            for slot in layout.slots:
                gradient[slot.start : slot.stop] = rng.standard_normal(slot.spec.size)
            gradient = narrow(gradient, fmt)
            total = widen(gradient).copy() if first else total + widen(gradient)
            server.accumulate("layer", gradient, first=first)
        assert_same_bits(server.read("layer", Section.GRAD).result(), total)


# --- H19


def steep(factor: float) -> Callable[[Any, Any], torch.Tensor]:
    """A loss whose gradients are ``factor`` times those of the mean of squares, and which is itself as finite."""
    return lambda out, targets: (out.square().mean() - out.square().mean().detach()) * factor


def test_H19_the_scale_comes_down_until_the_gradient_fits_and_counts_what_it_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scale = LossScale(2.0**24, growth_interval=2)
    batch = SMOOTH.batch(0, 12)
    with make_relay(SMOOTH, micro_batch=4, loss_scale=scale) as relay:
        start = whole_state(relay)
        skips = 0
        while relay.step(batch.inputs, batch.targets, steep(1e34)).skipped:
            skips += 1
            assert_unchanged(start, whole_state(relay))
            assert (scale.skipped, scale.skipped_in_a_row, relay.steps_skipped) == (skips,) * 3
            assert scale.scale == 2.0 ** (24 - skips)
        assert skips > 3
        assert (scale.skipped, scale.skipped_in_a_row, scale.good) == (skips, 0, 1)
        assert (relay.steps_done, relay.steps_skipped) == (skips + 1, skips)
        assert {relay.server.applies(layer) for layer in relay.server.layers()} == {1}
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(said) == 1, "once for the whole streak"
    assert "skipped" in said[0]


def test_H19_skipping_ends_at_the_smallest_scale_with_an_error_that_names_the_layer() -> None:
    scale = LossScale(2.0**6, smallest=2.0**2)
    batch = SMOOTH.batch(0, 12)
    with make_relay(SMOOTH, micro_batch=4, loss_scale=scale) as relay:
        start = whole_state(relay)
        for _ in range(4):
            assert relay.step(batch.inputs, batch.targets, steep(3e38)).skipped
        with pytest.raises(NonFiniteGradient, match=r"layer '\d' in micro-batch \d"):
            relay.step(batch.inputs, batch.targets, steep(3e38))
        assert_unchanged(start, whole_state(relay))
        assert not relay.torn
        assert not relay.step(batch.inputs, batch.targets, SMOOTH.loss).skipped, "and training can go on"


@given(outcomes=st.lists(st.booleans(), max_size=200), interval=st.integers(1, 5))
def test_H19_the_scale_stays_a_power_of_two_within_its_bounds(outcomes: list[bool], interval: int) -> None:
    scale = LossScale(2.0**3, growth_interval=interval, smallest=0.5, largest=2.0**6)
    in_a_row = 0
    for finite in outcomes:
        before = scale.scale
        scale.update(finite=finite)
        in_a_row = 0 if finite else in_a_row + 1
        assert scale.skipped_in_a_row == in_a_row
        assert scale.scale in (before, min(before * 2, 2.0**6) if finite else max(before / 2, 0.5))
        assert np.log2(scale.scale) % 1 == 0
    assert scale.skipped == outcomes.count(False)


# --- H20


def overflowing(relay: Relay, step: int, *, overflows: bool) -> Any:
    """A step whose gradient overflows, or one that does not."""
    batch = SMOOTH.batch(step, 12)
    return relay.step(batch.inputs, batch.targets, steep(3e38 if overflows else 1.0))


def test_H20_a_skipped_step_moves_nothing_that_counts_optimizer_steps() -> None:
    overflows = [False, True, True, False, True, False]
    hooks = {"before": 0, "after": 0}
    with make_relay(SMOOTH, loss_scale=LossScale(2.0**16)) as relay:
        schedule = torch.optim.lr_scheduler.LambdaLR(relay.optimizer, lambda epoch: 0.5**epoch)
        relay.optimizer.register_step_pre_hook(lambda *_: hooks.update(before=hooks["before"] + 1))
        relay.optimizer.register_step_post_hook(lambda *_: hooks.update(after=hooks["after"] + 1))
        # A scheduler that hangs on the optimizer's steps, and not on the loop's, needs nobody to think of it.
        relay.optimizer.register_step_post_hook(lambda *_: schedule.step())
        for step, overflow in enumerate(overflows):
            rate = relay.optimizer.param_groups[0]["lr"]
            result = overflowing(relay, step, overflows=overflow)
            assert result.skipped is overflow
            assert (result.step, relay.steps_done) == (step, step + 1)
            moved = relay.optimizer.param_groups[0]["lr"] != rate
            assert moved is not overflow
        updates = overflows.count(False)
        assert hooks == {"before": updates, "after": updates}
        assert schedule.last_epoch == updates
        assert {relay.server.applies(layer) for layer in relay.server.layers()} == {updates}
        assert relay.steps_skipped == len(overflows) - updates


def test_H20_a_mini_batch_in_which_nothing_counts_is_skipped_like_any_other() -> None:
    batch = MLP.batch(0, 6)
    ignored = torch.full_like(batch.targets, -100)
    with make_relay(MLP, micro_batch=4) as relay:
        stepped: list[None] = []
        relay.optimizer.register_step_post_hook(lambda *_: stepped.append(None))
        take_step(relay, MLP, 0, 6)
        before = whole_state(relay)
        result = relay.step(batch.inputs, ignored, F.cross_entropy, count=-100)
        assert (result.skipped, result.loss) == (True, 0.0)
        assert len(stepped) == 1
        assert_unchanged(before, whole_state(relay))


# --- H21


@st.composite
def masks(draw: st.DrawFn) -> tuple[int, torch.Tensor]:
    """A micro-batch size and labels of a batch of texts; some, whole texts and whole micro-batches too, are ignored."""
    texts, micro = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.sampled_from(["all", "none", "some"]), min_size=texts, max_size=texts))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    labels = torch.randint(0, 5, (texts, 6), generator=g)
    for row, kind in enumerate(rows):
        if kind == "none":
            labels[row] = -100
        elif kind == "some":
            labels[row][torch.rand(6, generator=g) < 0.6] = -100
    return micro, labels


def by_token(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over the labels that are not ignored; NaN where all are."""
    return F.cross_entropy(out.flatten(0, 1), labels.flatten(), ignore_index=-100)


@given(masked=masks(), mode=st.sampled_from(["exact", "adama"]))
@settings(max_examples=25)
def test_H21_uneven_micro_batches_give_the_batchs_mean(masked: tuple[int, torch.Tensor], mode: str) -> None:
    micro, labels = masked
    inputs = torch.randn(*labels.shape, 7, generator=torch.Generator().manual_seed(0))
    whole = SMOOTH.make()
    loss = by_token(whole(inputs), labels)
    with RecordingServer() as server, make_relay(SMOOTH, server=server, micro_batch=micro, mode=mode) as relay:
        result = relay.step(inputs, labels, by_token, count=-100)
        folded = server.take_gradients()
        if not (labels != -100).any():
            assert result.skipped
            assert not folded
            return
        assert result.loss == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        for name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            np.testing.assert_allclose(np.sum(folded[name], axis=0), parameter.grad.numpy(), rtol=1e-3, atol=1e-6)
        state = relay.state_dict()
        assert all(value.isfinite().all() for value in state.values()), "an all-masked micro-batch is zero, not NaN"
        whole.load_state_dict(state)
        with torch.no_grad():
            wanted = by_token(whole(inputs), labels).item()
        assert relay.evaluate(inputs, labels, by_token, count=-100) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("micro_batch", [1, 4, 5, 7, 11])
@pytest.mark.parametrize("mode", ["exact", "adama"])
def test_H21_weights_by_samples_are_plain_accumulations_to_the_bit(micro_batch: int, mode: str) -> None:
    follow(MLP, micro_batch=micro_batch, sizes=(12, 9), mode=mode)


def test_H21_counts_of_a_users_own_weigh_as_given() -> None:
    weights = torch.tensor([0, 0, 0, 0, 3, 1, 0, 2, 5, 1, 1, 1])

    def count(targets: tuple[torch.Tensor, torch.Tensor]) -> int:
        return int(targets[1].sum())

    def mean(out: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        each = F.cross_entropy(out, targets[0], reduction="none")
        return (each * targets[1]).sum() / targets[1].sum()

    batch, whole = SMOOTH.batch(0, 12), SMOOTH.make()
    loss = mean(whole(batch.inputs), (batch.targets, weights))
    loss.backward()
    with RecordingServer() as server, make_relay(SMOOTH, server=server, micro_batch=4) as relay:
        result = relay.step(batch.inputs, (batch.targets, weights), mean, count=count)
        assert result.micro_batches == 2, "the first counts for nothing and is left out"
        assert result.loss == pytest.approx(loss.item(), rel=1e-5)
        for name, (gradient,) in server.take_gradients().items():
            wanted = whole.get_parameter(name).grad
            assert wanted is not None
            np.testing.assert_allclose(gradient, wanted.numpy(), rtol=1e-3, atol=1e-6)


# --- H22


@pytest.mark.parametrize("mode", ["exact", "adama"])
@pytest.mark.parametrize("micro_batch", [None, 1, 4, 64])
@PLACED
def test_H22_batches_of_any_size_train_in_any_order(place: dict[str, Any], micro_batch: int | None, mode: str) -> None:
    follow(MLP, micro_batch=micro_batch, sizes=(1, 9, 4, 3, 1), mode=mode, **place)


#: Batch norm in training has no statistics of one sample: torch refuses it, and so it is refused here.
NORMED = {"batch norm", "frozen prefix", "frozen batch norm"}


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NORMED], ids=str)
def test_H22_a_single_sample_trains_every_model(case: Case) -> None:
    follow(case, micro_batch=5, sizes=(1, 6))


def test_H22_no_sample_at_all_is_refused_in_a_sentence_and_changes_nothing() -> None:
    batch = MLP.batch(0, 4)
    with make_relay(MLP, micro_batch=4) as relay:
        before = whole_state(relay)
        with pytest.raises(RelayError, match="0 samples"):
            relay.step(batch.inputs[:0], batch.targets[:0], MLP.loss)
        assert_unchanged(before, whole_state(relay))
        take_step(relay, MLP, 0, 4)
