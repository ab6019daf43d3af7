"""A model of your own through the relay: named layers, a mask as a side input, tied weights, labels that are ignored.

The task is a toy: read digits backwards. Sequences have different lengths; padding is masked out of attention and
out of the loss. Run it with `python examples/own_model.py`; it takes some seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from relay_eps import Relay, RelayLayer

PAD, LENGTH, WIDTH = 10, 8, 64
IGNORED = -100


class Block(nn.Module):
    """Attention over positions that are not padding, then a small network; each adds to what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.network = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, key_padding_mask=padding, need_weights=False)[0]
        return x + self.network(x)


class Reverser(nn.Module):
    """Embedding with positions held by the model itself, blocks, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(PAD + 1, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def embed(self, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The first layer makes the mask that every block takes."""
        return self.embedding(tokens) + self.positions, {"padding": tokens == PAD}

    def head(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x), self.embedding.weight)

    def relay_layers(self) -> Sequence[RelayLayer]:
        """The chain, bottom first."""
        return [
            RelayLayer(
                self.embed, modules=[self.embedding], parameters=[self.positions], name="embed", provides=["padding"]
            ),
            *(RelayLayer(block, side=["padding"]) for block in self.blocks),
            RelayLayer(self.head, modules=[self.norm], parameters=[self.embedding.weight], name="head"),
        ]


def batch(step: int, samples: int = 64) -> tuple[Tensor, Tensor]:
    """Digits of random lengths, padded, and the same digits backwards."""
    rng = torch.Generator().manual_seed(step)
    tokens = torch.full((samples, LENGTH), PAD)
    labels = torch.full((samples, LENGTH), IGNORED)
    for row in range(samples):
        length = int(torch.randint(2, LENGTH + 1, (1,), generator=rng))
        digits = torch.randint(10, (length,), generator=rng)
        tokens[row, :length], labels[row, :length] = digits, digits.flip(0)
    return tokens, labels


def loss_of(output: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels that are not ignored."""
    return functional.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def main(steps: int = 200) -> None:
    with Relay(Reverser(), lr=3e-3, micro_batch=16, max_grad_norm=1.0, stash="host") as relay:
        schedule = torch.optim.lr_scheduler.OneCycleLR(relay.optimizer, max_lr=3e-3, total_steps=steps)
        for step in range(steps):
            # count: the micro-batches' means are weighed by their labels, so that this is the mini-batch's mean.
            result = relay.step(*batch(step), loss_of, count=IGNORED)
            schedule.step()
            if step % 25 == 0 or step == steps - 1:
                print(f"step {step:4d}  loss {result.loss:.3f}  gradient norm {result.grad_norm:.2f}")
        print(f"held-out loss {relay.evaluate(*batch(10**6), loss_of, count=IGNORED):.3f}")


if __name__ == "__main__":
    main()
