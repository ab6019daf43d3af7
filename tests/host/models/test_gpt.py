"""The byte-level GPT: shapes, causality, tying, initialisation, and that its chain of layers is the model."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_eps.errors import RelayError
from relay_eps.models.gpt import Block, Gpt, next_byte_loss
from relay_eps.models.gpt_config import GptConfig

SMALL = GptConfig(layers=2, width=16, heads=2, context=12)


def ids(batch: int, time: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (batch, time), generator=torch.Generator().manual_seed(seed))


@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    per_head=st.integers(1, 4),
    batch=st.integers(1, 3),
    time=st.integers(1, 6),
    tied=st.booleans(),
)
@settings(max_examples=20)
def test_logits_have_a_value_for_each_byte(layers: int, heads: int, per_head: int, batch: int, time: int, tied: bool):
    model = Gpt(GptConfig(layers, heads * per_head, heads, context=6, tied=tied))
    assert model(ids(batch, time)).shape == (batch, time, 256)
    assert len(model) == layers + 2


def test_a_position_sees_nothing_of_what_comes_after_it():
    model = Gpt(SMALL)
    text = ids(1, 12)
    changed = text.clone()
    changed[0, 7:] = (changed[0, 7:] + 1) % 256
    before, after = model(text), model(changed)
    assert torch.equal(before[0, :7], after[0, :7])
    assert not torch.equal(before[0, 7:], after[0, 7:])


def test_untrained_it_is_as_good_as_guessing():
    loss = next_byte_loss(Gpt(GptConfig())(ids(4, 64)), ids(4, 64, seed=1))
    assert loss.item() == pytest.approx(math.log(256), abs=0.2)


def test_weights_are_a_function_of_config_and_seed_and_the_global_stream_is_left_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one = Gpt(SMALL, seed=5)
    assert torch.equal(torch.rand(3), expected)
    two, three = Gpt(SMALL, seed=5), Gpt(SMALL, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.state_dict()["0.tokens.weight"], three.state_dict()["0.tokens.weight"])


def test_tied_embedding_and_head_are_one_parameter():
    free, tied = Gpt(SMALL), Gpt(GptConfig(2, 16, 2, 12, tied=True))
    assert tied.get_parameter("0.tokens.weight") is tied.get_parameter("3.project.weight")
    size = sum(p.numel() for p in free.parameters()) - sum(p.numel() for p in tied.parameters())
    assert size == 256 * SMALL.width


def test_dropout_works_in_training_only():
    model = Gpt(GptConfig(2, 16, 2, 12, dropout=0.5))
    text = ids(2, 12)
    assert not torch.equal(model(text), model(text))
    model.eval()
    assert torch.equal(model(text), model(text))


def test_every_parameter_gets_a_gradient():
    model = Gpt(SMALL)
    next_byte_loss(model(ids(2, 12)), ids(2, 12, seed=1)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_attention_is_the_formula():
    block = Gpt(SMALL)[1]
    assert isinstance(block, Block)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    q, k, v = (part.view(2, 5, 2, 8).transpose(1, 2) for part in block.qkv(x).split(16, dim=-1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -math.inf)
    expected = (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 16)
    assert torch.allclose(block._attend(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 10, "heads": 3}, "width of 10 cannot be shared among 3 heads"),
        ({"layers": 0}, "layers of at least 1"),
        ({"context": 0}, "context of at least 1"),
        ({"dropout": 1.0}, "below 1"),
        ({"dropout": float("nan")}, "below 1"),
    ],
)
def test_an_impossible_shape_is_refused(wrong: dict, message: str):
    with pytest.raises(RelayError, match=message):
        GptConfig(**wrong)


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(RelayError, match="13 bytes is longer than the model's context of 12"):
        Gpt(SMALL)(ids(1, 13))
