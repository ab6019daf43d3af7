"""A step that fails leaves everything as it was, or the relay is torn and says so until a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from relay_eps.errors import NonFiniteGradient, NonFiniteLoss, RelayEpsError, TornStep
from relay_eps.relay import LossScale, ModelledLink, Relay
from tests.host.relay.following import assert_unchanged, make_relay, take_step, whole_state
from tests.host.relay.servers import FaultyServer
from tests.host.relay.trouble import CHAIN, Chain, gradient_times, raising

N, MICRO = 12, 4


class Boom(Exception):
    """An error of the user's own."""


def failing_loss(error: BaseException | float, at: int = 1) -> Callable[[Any, Any], torch.Tensor]:
    """Cross-entropy that fails at the call number ``at``: raises, or gives that value."""
    calls: list[None] = []

    def loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        value = F.cross_entropy(out, targets)
        if len(calls) == at + 1:
            if isinstance(error, BaseException):
                raise error
            return value * error
        return value

    return loss


@dataclass(frozen=True)
class Failure:
    """A step that fails: what is armed, the loss, and what is raised."""

    raised: type[BaseException]
    arm: Callable[[Chain], None] = lambda chain: None
    loss: Callable[[], Callable[[Any, Any], torch.Tensor]] = lambda: F.cross_entropy
    says: str = ""


BEFORE_ANY_UPDATE = {
    "interrupted in a first forward": Failure(
        KeyboardInterrupt, lambda c: c.low.arm("first", 0, raising(KeyboardInterrupt()))
    ),
    "interrupted in a later micro-batch": Failure(
        KeyboardInterrupt, lambda c: c.low.arm("first", 2, raising(KeyboardInterrupt()))
    ),
    "interrupted in the last layer": Failure(
        KeyboardInterrupt, lambda c: c.head.arm("recompute", 1, raising(KeyboardInterrupt()))
    ),
    "an error in the loss": Failure(Boom, loss=lambda: failing_loss(Boom("of the loss")), says="of the loss"),
    "interrupted in the loss": Failure(KeyboardInterrupt, loss=lambda: failing_loss(KeyboardInterrupt(), at=2)),
    "a loss that is NaN": Failure(
        NonFiniteLoss, loss=lambda: failing_loss(float("nan")), says=r"micro-batch 1 in step \d is nan.*no weight"
    ),
    "a loss that is infinite": Failure(
        NonFiniteLoss, loss=lambda: failing_loss(float("inf"), at=2), says="micro-batch 2.*inf"
    ),
    "a bad gradient at the top": Failure(
        NonFiniteGradient,
        lambda c: c.head.arm("recompute", 1, gradient_times(float("nan"))),
        says="layer '5' in micro-batch 1.*not folded",
    ),
}
AFTER_THE_TOP = {
    "interrupted in a recompute": Failure(
        KeyboardInterrupt, lambda c: c.low.arm("recompute", 1, raising(KeyboardInterrupt()))
    ),
    "an error in a recompute": Failure(Boom, lambda c: c.low.arm("recompute", 0, raising(Boom("below"))), says="below"),
    "a bad gradient below": Failure(
        NonFiniteGradient,
        lambda c: c.low.arm("recompute", 2, gradient_times(float("inf"))),
        says="layer '0' in micro-batch 2",
    ),
}
EAGER: dict[str, dict[str, Any]] = {
    "exact": {},
    "slots": {"link": ModelledLink(jitter=0.001), "stash": "host"},
    "adama": {"mode": "adama"},
}
DEFERRED: dict[str, dict[str, Any]] = {
    "clipping": {"max_grad_norm": 0.5},
    "clipping, slots": {"max_grad_norm": 0.5, "link": ModelledLink(jitter=0.001), "stash": "host"},
}


def fail(relay: Relay, step: int, failure: Failure) -> None:
    """Take the step that fails."""
    assert isinstance(relay.model, Chain)
    failure.arm(relay.model)
    batch = CHAIN.batch(step, N)
    torch.manual_seed(99)
    stream = torch.get_rng_state()
    with pytest.raises(failure.raised, match=failure.says or None):
        relay.step(batch.inputs, batch.targets, failure.loss())
    assert torch.equal(torch.get_rng_state(), stream)


def check_no_trace(settings: dict[str, Any], failure: Failure, healthy: int, server: Any = None) -> None:
    """After ``healthy`` steps one fails without a trace, and the next ones give the bits they would have given."""
    with (
        make_relay(CHAIN, micro_batch=MICRO, server=server, **settings) as relay,
        make_relay(CHAIN, micro_batch=MICRO, **settings) as undisturbed,
    ):
        for step in range(healthy):
            take_step(relay, CHAIN, step, N)
            take_step(undisturbed, CHAIN, step, N)
        before = whole_state(relay)
        fail(relay, healthy, failure)
        assert not relay.torn
        assert relay.steps_done == healthy
        assert_unchanged(before, whole_state(relay))
        for step in range(healthy, healthy + 2):
            assert take_step(relay, CHAIN, step, N) == take_step(undisturbed, CHAIN, step, N)
        assert_unchanged(whole_state(undisturbed), whole_state(relay))


#: AdamA has folded the first micro-batch of the last layer by then.
TOO_LATE_FOR_ADAMA = ("a bad gradient at the top", "interrupted in the last layer")


@pytest.mark.parametrize("healthy", [0, 1], ids=["first step", "second step"])
@pytest.mark.parametrize(
    ("setting", "name"),
    [
        (setting, name)
        for setting in (*EAGER, *DEFERRED)
        for name in BEFORE_ANY_UPDATE
        if setting != "adama" or name not in TOO_LATE_FOR_ADAMA
    ],
)
def test_a_failure_before_any_update_leaves_no_trace(setting: str, name: str, healthy: int) -> None:
    check_no_trace({**EAGER, **DEFERRED}[setting], BEFORE_ANY_UPDATE[name], healthy)


@pytest.mark.parametrize("healthy", [0, 1], ids=["first step", "second step"])
@pytest.mark.parametrize("name", AFTER_THE_TOP)
@pytest.mark.parametrize("setting", DEFERRED)
def test_under_deferred_commit_no_failure_leaves_a_trace(setting: str, name: str, healthy: int) -> None:
    check_no_trace(DEFERRED[setting], AFTER_THE_TOP[name], healthy)


def test_an_error_of_the_server_while_it_sums_leaves_no_trace() -> None:
    with FaultyServer(Boom("server"), at=3, fits=lambda what, layer: what == "accumulate") as server:
        check_no_trace({"max_grad_norm": 0.5}, Failure(Boom, says="server"), 0, server)


# --- torn steps


def check_torn(relay: Relay, folder: Path, failure: Failure) -> None:
    """The step tears the relay; everything is refused until a checkpoint is loaded, and then all is well."""
    take_step(relay, CHAIN, 0, N)
    relay.save(folder)
    saved = whole_state(relay)
    fail(relay, 1, failure)
    _check_refused(relay, folder)
    assert [p.name for p in folder.iterdir()] == ["step-00000001"]
    relay.load(folder)
    assert relay.torn is False
    assert_unchanged(saved, whole_state(relay))
    with make_relay(CHAIN, micro_batch=MICRO, mode=relay.mode) as undisturbed:
        for step in range(3):
            expected = take_step(undisturbed, CHAIN, step, N)
            if step:
                assert take_step(relay, CHAIN, step, N) == expected
        assert_unchanged(whole_state(undisturbed), whole_state(relay))


def _check_refused(relay: Relay, folder: Path) -> None:
    assert relay.torn
    batch = CHAIN.batch(1, N)
    refused: dict[str, Callable[[], Any]] = {
        "step": lambda: relay.step(batch.inputs, batch.targets, CHAIN.loss),
        "evaluate": lambda: relay.evaluate(batch.inputs, batch.targets, CHAIN.loss),
        "forward": lambda: relay.forward(batch.inputs),
        "save": lambda: relay.save(folder),
        "state_dict": relay.state_dict,
    }
    for name, call in refused.items():
        with pytest.raises(TornStep, match=f"{name} is refused.*load a checkpoint"):
            call()


@pytest.mark.parametrize("name", AFTER_THE_TOP)
@pytest.mark.parametrize("setting", EAGER)
def test_a_failure_after_an_update_tears_the_step(setting: str, name: str, tmp_path: Path) -> None:
    with make_relay(CHAIN, micro_batch=MICRO, **EAGER[setting]) as relay:
        check_torn(relay, tmp_path, AFTER_THE_TOP[name])


def test_adama_is_torn_by_a_bad_gradient_once_a_micro_batch_was_folded(tmp_path: Path) -> None:
    with make_relay(CHAIN, micro_batch=MICRO, mode="adama") as relay:
        check_torn(relay, tmp_path, BEFORE_ANY_UPDATE["a bad gradient at the top"])


@pytest.mark.parametrize("at", [0, 2, 5])
def test_an_error_of_the_server_in_the_update_tears_the_step(at: int, tmp_path: Path) -> None:
    # The healthy first step makes six such calls.
    with (
        FaultyServer(Boom("server"), at=6 + at, fits=lambda what, layer: what == "fold_apply") as server,
        make_relay(CHAIN, server=server, micro_batch=MICRO) as relay,
    ):
        check_torn(relay, tmp_path, Failure(Boom, says="server"))


def test_an_error_of_the_server_while_settling_tears_the_step() -> None:
    with (
        FaultyServer(Boom("server"), at=3, fits=lambda what, layer: what == "fold_apply") as server,
        make_relay(CHAIN, server=server, micro_batch=MICRO, max_grad_norm=0.5) as relay,
    ):
        fail(relay, 0, Failure(Boom, says="server"))
        assert relay.torn


def test_the_traceback_of_a_torn_step_says_so() -> None:
    with make_relay(CHAIN, micro_batch=MICRO) as relay:
        assert isinstance(relay.model, Chain)
        relay.model.low.arm("recompute", 0, raising(Boom()))
        with pytest.raises(Boom) as caught:
            take_step(relay, CHAIN, 0, N)
    # Python 3.10 has no notes.
    assert any("torn" in note for note in getattr(caught.value, "__notes__", ["torn"]))


def test_closing_a_torn_relay_says_what_the_weights_are(caplog: pytest.LogCaptureFixture) -> None:
    relay = make_relay(CHAIN, micro_batch=MICRO)
    assert isinstance(relay.model, Chain)
    relay.model.low.arm("recompute", 0, raising(Boom()))
    with pytest.raises(Boom):
        take_step(relay, CHAIN, 0, N)
    relay.close()
    assert "closed torn" in caplog.text


def test_a_gradient_that_overflows_only_as_a_sum_is_not_folded() -> None:
    with make_relay(CHAIN, micro_batch=6) as relay:
        before = whole_state(relay)
        batch = CHAIN.batch(0, N)
        batch = type(batch)(batch.inputs[:6].repeat(2, 1), batch.targets[:6].repeat(2))
        relay.model.eval()

        def loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            # Zero, and the head's bias gets 6 * 0.5e38 from each of two micro-batches.
            return (out[:, 0] - out[:, 0].detach()).sum() * 1e38

        with pytest.raises(NonFiniteGradient, match="layer '5' in micro-batch 1"):
            relay.step(batch.inputs, batch.targets, loss)
        assert_unchanged(before, whole_state(relay))


# --- overflow under loss scaling


def test_h19_h20_an_overflow_under_loss_scaling_skips_the_step_and_nothing_counts_it() -> None:
    scale = LossScale(2.0**10)
    with make_relay(CHAIN, micro_batch=MICRO, loss_scale=scale) as relay:
        assert isinstance(relay.model, Chain)
        counted: list[None] = []
        relay.optimizer.register_step_post_hook(lambda *_: counted.append(None))
        scheduler = torch.optim.lr_scheduler.LambdaLR(relay.optimizer, lambda epoch: 0.5**epoch)
        take_step(relay, CHAIN, 0, N)
        scheduler.step()
        before = whole_state(relay)
        relay.model.low.arm("recompute", 1, gradient_times(float("inf")))
        result = take_step(relay, CHAIN, 1, N)
        assert result.skipped
        assert result.step == 1
        assert_unchanged(before, whole_state(relay))
        assert (relay.steps_done, relay.steps_skipped, len(counted)) == (2, 1, 1)
        assert (scale.scale, scale.skipped, scale.skipped_in_a_row) == (2.0**9, 1, 1)
        assert not take_step(relay, CHAIN, 2, N).skipped
        assert (relay.steps_done, relay.steps_skipped, len(counted)) == (3, 1, 2)
        assert (scale.scale, scale.skipped, scale.skipped_in_a_row) == (2.0**9, 1, 0)
        assert {relay.server.applies(layer) for layer in relay.server.layers()} == {2}


def test_h19_overflows_in_a_row_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with make_relay(CHAIN, micro_batch=MICRO, loss_scale=LossScale(2.0**10)) as relay:
        assert isinstance(relay.model, Chain)
        for step in range(3):
            relay.model.low.arm("recompute", 1, gradient_times(float("inf")))
            assert take_step(relay, CHAIN, step, N).skipped
    assert [r.getMessage() for r in caplog.records if "overflow" in r.getMessage()] == [
        "gradients overflowed at loss scale 1024: the step is skipped"
    ]


def test_h19_at_the_smallest_scale_a_bad_gradient_is_an_error_without_a_trace() -> None:
    scale = LossScale(2.0, smallest=2.0)
    check_no_trace({"loss_scale": LossScale(2.0, smallest=2.0)}, AFTER_THE_TOP["a bad gradient below"], 1)
    with make_relay(CHAIN, micro_batch=MICRO, loss_scale=scale) as relay:
        fail(relay, 0, AFTER_THE_TOP["a bad gradient below"])
        assert scale == LossScale(2.0, smallest=2.0)


# --- other refusals inside a step


def test_what_is_called_inside_a_step_is_refused() -> None:
    with make_relay(CHAIN, micro_batch=MICRO) as relay:
        calls: list[Callable[[], Any]] = [relay.state_dict, lambda: take_step(relay, CHAIN, 0, N)]
        for call in calls:

            def loss(out: torch.Tensor, targets: torch.Tensor, call: Callable[[], Any] = call) -> torch.Tensor:
                with pytest.raises(RelayEpsError, match="inside a step: call it between steps"):
                    call()
                raise Boom

            with pytest.raises(Boom):
                relay.step(*_pair(0), loss)
        assert not take_step(relay, CHAIN, 0, N).skipped


def _pair(step: int) -> tuple[Any, Any]:
    batch = CHAIN.batch(step, N)
    return batch.inputs, batch.targets


def test_a_failed_evaluation_changes_nothing_and_gives_the_weights_back() -> None:
    with make_relay(CHAIN, micro_batch=MICRO, link=ModelledLink()) as relay:
        before = whole_state(relay)
        with pytest.raises(Boom):
            relay.evaluate(*_pair(0), failing_loss(Boom()))
        assert isinstance(relay.model, Chain)
        relay.model.low.arm("first", 1, raising(Boom()))
        with pytest.raises(Boom):
            relay.forward(_pair(0)[0])
        assert relay.model.training
        relay.model.eval()
        relay.forward(_pair(0)[0])
        assert_unchanged(before, whole_state(relay), but=[n for n in before if n.startswith("buffer")])
