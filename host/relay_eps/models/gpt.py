"""A byte-level GPT: the model that the command line trains, and a chain of layers that the relay splits by itself.

The architecture is GPT-2's (pre-norm blocks, learned positions, GELU) with a vocabulary of the 256 byte values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from relay_eps.errors import RelayError
from relay_eps.models.gpt_config import GptConfig

VOCABULARY = 256
_INIT_STD = 0.02


class Gpt(nn.Sequential):
    """Embedding, then ``config.layers`` blocks, then the head.

    Takes token ids, int64 of shape (batch, time) with time at most ``config.context``; gives logits of shape
    (batch, time, 256). The weights are a function of (config, seed); torch's global random stream is left as it was.
    """

    def __init__(self, config: GptConfig, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            embedding, head = Embedding(config), Head(config)
            if config.tied:
                head.project.weight = embedding.tokens.weight
            super().__init__(embedding, *(Block(config) for _ in range(config.layers)), head)
        self.config = config


class Embedding(nn.Module):
    """Bytes and positions to features: (batch, time) int64 to (batch, time, width)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.tokens.weight, std=_INIT_STD)
        nn.init.normal_(self.positions.weight, std=_INIT_STD)

    def forward(self, ids: Tensor) -> Tensor:
        time = ids.shape[-1]
        if time > self.positions.num_embeddings:
            raise RelayError(
                f"a sequence of {time} bytes is longer than the model's context of {self.positions.num_embeddings}"
            )
        positions: Tensor = self.positions.weight[:time]
        features: Tensor = self.dropout(self.tokens(ids) + positions)
        return features


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and added to the stream of (batch, time, width)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = _linear(width, 3 * width)
        # The stream's variance grows with each of the 2n additions; smaller last projections keep it level (GPT-2).
        self.mix = _linear(width, width, std=_INIT_STD / math.sqrt(2 * config.layers))
        self.feed_norm = nn.LayerNorm(width)
        self.widen = _linear(width, 4 * width)
        self.narrow = _linear(4 * width, width, std=_INIT_STD / math.sqrt(2 * config.layers))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.mix(self._attend(self.attention_norm(x))))
        fed: Tensor = self.narrow(functional.gelu(self.widen(self.feed_norm(x))))
        return x + self.dropout(fed)

    def _attend(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        rate = self.dropout.p if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, time, width)


class Head(nn.Module):
    """The final norm and the projection to logits: (batch, time, width) to (batch, time, 256)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.project = _linear(config.width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.project(self.norm(x))
        return logits


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats a byte of logits (batch, time, 256) against int64 targets (batch, time)."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def _linear(inputs: int, outputs: int, *, bias: bool = True, std: float = _INIT_STD) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
