"""Plain PyTorch beside the relay: it is the same training, step for step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from relay_eps.data import TextData
from relay_eps.models.gpt import Gpt, next_byte_loss
from relay_eps.relay import Relay
from relay_eps.training.comparison import PlainTraining
from relay_eps.training.config import BETAS, TrainConfig
from tests.host.training.small import config


def batches(settings: TrainConfig, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    data = TextData.load(settings.paths)
    drawn = [
        data.batch(seed=settings.seed, step=step, batch=settings.batch, context=settings.model.context)
        for step in range(count)
    ]
    return [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in drawn]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_it_does_what_the_relay_does(tmp_path: Path, clip: float | None):
    settings = config(tmp_path, clip=clip)
    plain = PlainTraining(settings)
    model = Gpt(settings.model, settings.seed)
    with Relay(
        model,
        lr=settings.lr,
        betas=BETAS,
        weight_decay=settings.weight_decay,
        micro_batch=settings.micro_batch,
        max_grad_norm=clip,
    ) as relay:
        for inputs, targets in batches(settings, 3):
            plain._step(inputs, targets)
            relay.step(inputs, targets, next_byte_loss)
        ours = relay.state_dict()
    for name, theirs in plain._model.state_dict().items():
        assert torch.allclose(ours[name], theirs, atol=1e-5), name


def test_nothing_is_claimed_before_anything_was_measured(tmp_path: Path):
    settings = config(tmp_path)
    plain = PlainTraining(settings)
    assert plain.result() is None
    plain.beside(0.5, *batches(settings, 1)[0])
    plain.beside(0.5, *batches(settings, 1)[0])
    result = plain.result()
    assert result is not None
    assert result.relay_tokens_per_second == settings.bytes_per_step / 0.5
