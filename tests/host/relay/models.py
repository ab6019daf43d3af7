"""Tiny models that between them use everything the relay promises, and batches for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from relay_eps.relay import RelayLayer

CLASSES = 5
TOKENS = 11


@dataclass(frozen=True)
class Batch:
    """One mini-batch."""

    inputs: Any
    targets: Any
    side: dict[str, Any] | None = None


@dataclass(frozen=True)
class Case:
    """A model with its data; ``make`` gives the same weights every time."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    loss: Callable[[Any, Any], torch.Tensor] = F.cross_entropy
    #: Tensors that never get a gradient while their neighbours do: taken as zero.
    zero: frozenset[str] = frozenset()
    #: Tensors of parameter groups, as name prefixes with what the group sets.
    groups: Sequence[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __str__(self) -> str:
        return self.name


def layers_of(model: nn.Module) -> list[RelayLayer]:
    """The model's layers, as it names them itself."""
    if isinstance(model, nn.Sequential):
        return [RelayLayer(module) for module in model]
    named: Any = model
    return [e if isinstance(e, RelayLayer) else RelayLayer(e) for e in named.relay_layers()]


# --- batches


def vectors(step: int, n: int, width: int = 7) -> Batch:
    """Random vectors with a class each."""
    g = torch.Generator().manual_seed(1000 + step)
    return Batch(torch.randn(n, width, generator=g), torch.randint(0, CLASSES, (n,), generator=g))


def images(step: int, n: int) -> Batch:
    """Random images with a class each."""
    g = torch.Generator().manual_seed(2000 + step)
    return Batch(torch.randn(n, 2, 6, 6, generator=g), torch.randint(0, CLASSES, (n,), generator=g))


def texts(step: int, n: int) -> Batch:
    """Random tokens to predict from random tokens, and a mask as a side input."""
    g = torch.Generator().manual_seed(3000 + step)
    inputs, targets = (torch.randint(0, TOKENS, (n, 6), generator=g) for _ in range(2))
    return Batch(inputs, targets, {"mask": torch.rand(n, 6, 1, generator=g)})


def plain_texts(step: int, n: int) -> Batch:
    """As `texts`, without the mask."""
    batch = texts(step, n)
    return Batch(batch.inputs, batch.targets)


def token_loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy a token."""
    return F.cross_entropy(out.flatten(0, 1), targets.flatten())


# --- chains


def mlp() -> nn.Sequential:
    """Linear layers of odd sizes, dropout, a block, and layers without weights."""
    return nn.Sequential(
        nn.Linear(7, 33),
        nn.Sequential(nn.ReLU(), nn.Dropout(0.3), nn.Linear(33, 20)),
        nn.LayerNorm(20),
        nn.Dropout(0.2),
        nn.Linear(20, CLASSES),
    )


def batch_norms() -> nn.Sequential:
    """Running statistics by momentum and as cumulative means, after dropout."""
    return nn.Sequential(
        nn.Linear(7, 12),
        nn.Sequential(nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 10)),
        nn.BatchNorm1d(10, momentum=None),
        nn.Linear(10, CLASSES),
        nn.BatchNorm1d(CLASSES),
    )


def convolutions() -> nn.Sequential:
    """Convolution, batch norm, pooling, dropout of channels."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(4, 3, 3), nn.Dropout2d(0.3), nn.GELU(), nn.Flatten()),
        nn.Linear(3, CLASSES),
    )


def spectral_norms_old() -> nn.Sequential:
    """Spectral norm by hooks: power iterations move buffers in every forward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normed = [nn.utils.spectral_norm(nn.Linear(*size)) for size in ((7, 9), (9, 8), (8, CLASSES))]
    return nn.Sequential(normed[0], nn.Sequential(nn.Tanh(), normed[1]), nn.Tanh(), normed[2])


def spectral_norms() -> nn.Sequential:
    """Spectral norm as a parametrization."""
    normed = [nn.utils.parametrizations.spectral_norm(nn.Linear(*size)) for size in ((7, 9), (9, 8), (8, CLASSES))]
    return nn.Sequential(normed[0], nn.Sequential(nn.Tanh(), normed[1]), nn.Tanh(), normed[2])


def one_layer() -> nn.Sequential:
    """The first layer is the last one."""
    return nn.Sequential(nn.Sequential(nn.Linear(7, 6), nn.Dropout(0.2), nn.Linear(6, CLASSES)))


class Transformer(nn.Module):
    """PyTorch's own encoder layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, TOKENS)

    def relay_layers(self) -> list[Any]:
        return [self.embed, *self.blocks, RelayLayer(lambda x: self.head(self.norm(x)), [self.norm, self.head])]


# --- frozen weights


def frozen(make: Callable[[], nn.Module], *names: str) -> Callable[[], nn.Module]:
    """``make`` with every parameter whose name starts with one of ``names`` frozen."""

    def made() -> nn.Module:
        model = make()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(names))
        return model

    return made


def evaluated(make: Callable[[], nn.Module], *names: str) -> Callable[[], nn.Module]:
    """``make`` with the submodules of these names in eval mode."""

    def made() -> nn.Module:
        model = make()
        for name in names:
            model.get_submodule(name).eval()
        return model

    return made


# --- values between layers


class Sides(nn.Module):
    """Side inputs: one given, one made with gradients, used by two layers and three times within one.

    ``scale`` is held by the root module itself; ``unused`` never gets a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8)
        self.scale = nn.Parameter(torch.randn(6, 8) * 0.1)
        self.encode = nn.Linear(8, 8)
        self.lower = nn.Linear(8, 8)
        self.upper = nn.Linear(8, 8)
        self.unused = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(8, TOKENS, bias=False)

    def bottom(self, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        x = self.embed(tokens)
        return x + self.scale, {"memory": torch.tanh(self.encode(x))}

    def middle(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.lower(x)) * memory * mask + F.dropout(memory, 0.2, self.training)

    def top(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.upper(x)) + memory * x + memory.sin() + memory

    def relay_layers(self) -> list[Any]:
        return [
            RelayLayer(self.bottom, [self.embed, self.encode], [self.scale], name="bottom", provides=["memory"]),
            RelayLayer(self.middle, [self.lower], [self.unused], name="middle", side=["memory", "mask"]),
            RelayLayer(self.top, [self.upper], name="top", side=["memory"]),
            self.head,
        ]


class Parcels(nn.Module):
    """Tuples, dicts, None, plain values, keyword arguments and tensors without gradient from layer to layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(7, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def open(self, x: torch.Tensor, y: torch.Tensor, nothing: None, name: str) -> dict[str, Any]:
        assert nothing is None
        assert name == "named"
        return {"x": (self.first(x), y), "skip": None, "power": 2, "seen": y.argmax(1), "deep": [{"a": x.exp()}, True]}

    def work(self, *, x: Any, skip: None, power: int, seen: torch.Tensor, deep: list[Any]) -> tuple[Any, ...]:
        assert skip is None
        assert deep[1] is True
        hidden = torch.tanh(self.second(x[0])) ** power
        return hidden * x[1][:, :1] + deep[0]["a"].sum(1, keepdim=True) * 0.1, seen, None, 1.5

    def end(self, hidden: torch.Tensor, seen: torch.Tensor, nothing: None, factor: float) -> torch.Tensor:
        assert nothing is None
        return self.third(hidden) * factor + F.one_hot(seen, 7)[:, :CLASSES]

    def relay_layers(self) -> list[Any]:
        return [
            RelayLayer(self.open, [self.first], name="open", unpack=True),
            RelayLayer(self.work, [self.second], name="work", unpack=True),
            RelayLayer(self.end, [self.third], name="end", unpack=True),
        ]


def parcels(step: int, n: int) -> Batch:
    """Inputs as a tuple, with None and a string."""
    plain = vectors(step, n)
    return Batch((plain.inputs, plain.inputs.flip(1), None, "named"), plain.targets)


# --- tied weights


class Tied(nn.Module):
    """One table below and above, used twice by the lowest layer's neighbour; or, ``untied``, a copy for each layer."""

    #: The copies of the shared tensor, the upper layer's first.
    COPIES = ("head.weight", "look.weight", "embed.weight")

    def __init__(self, *, untied: bool = False) -> None:
        super().__init__()
        self.untied = untied
        self.embed = nn.Embedding(TOKENS, 8)
        self.look = nn.Linear(8, TOKENS, bias=False)
        self.body = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, TOKENS, bias=False)
        for module in (self.look, self.head):
            copy = self.embed.weight.detach().clone()
            module.weight = nn.Parameter(copy) if untied else self.embed.weight

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.softmax(self.look(x), -1)
        return x + self.drop(torch.relu(self.body(x))) + seen @ self.look.weight

    def relay_layers(self) -> list[Any]:
        return [
            self.embed,
            RelayLayer(self.middle, [self.look, self.body, self.drop], name="middle"),
            self.head,
        ]


def untied(case: Case) -> tuple[Case, nn.Module]:
    """``case``, which is `TIED`, and its model with a copy of the shared tensor for each layer, of the same values."""
    return case, seeded(lambda: Tied(untied=True))()


# --- inputs with gradients


class Gated(nn.Module):
    """An input and a side input that may need gradients; the side input enters a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(7, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def open(self, pair: tuple[torch.Tensor, torch.Tensor], gate: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(pair[0])) * gate + pair[1][:, :1]

    def work(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.tanh(self.second(x * gate)), 0.2, self.training) + gate.exp()

    def relay_layers(self) -> list[Any]:
        return [
            RelayLayer(self.open, [self.first], name="open", side=["gate"]),
            RelayLayer(self.work, [self.second], name="work", side=["gate"]),
            self.third,
        ]


def gates(step: int, n: int) -> Batch:
    """Two input tensors and a gate."""
    plain = vectors(step, n)
    g = torch.Generator().manual_seed(4000 + step)
    return Batch((plain.inputs, plain.inputs.flip(1)), plain.targets, {"gate": torch.rand(n, 8, generator=g)})


# --- all of them


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """``make`` under a fixed seed, the global stream left alone."""

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return make()

    return made


def case(name: str, make: Callable[[], nn.Module], batch: Callable[[int, int], Batch], **more: Any) -> Case:
    """A case whose weights are always the same."""
    return Case(name, seeded(make), batch, **more)


MLP = case("mlp", mlp, vectors)
SIDES = case("side inputs", Sides, texts, loss=token_loss, zero=frozenset({"unused"}))
BATCH_NORM = case("batch norm", batch_norms, vectors)
GROUPS = case(
    "parameter groups",
    mlp,
    vectors,
    groups=[("0.", {"lr": 3e-2}), ("1.2.w", {"weight_decay": 0.0, "betas": (0.8, 0.95)}), ("", {"v_scale": 0.5})],
)
TIED = case("tied weights", Tied, plain_texts, loss=token_loss)
WATCHED = case("watched inputs", Gated, gates)
CASES = [
    MLP,
    BATCH_NORM,
    case("convolutions", convolutions, images),
    case("spectral norm, old", spectral_norms_old, vectors),
    case("spectral norm", spectral_norms, vectors),
    case("one layer", one_layer, vectors),
    case("transformer", Transformer, plain_texts, loss=token_loss),
    SIDES,
    case("tuples, None and keywords", Parcels, parcels),
    case("frozen prefix", frozen(batch_norms, "0", "1"), vectors),
    case("frozen middle", frozen(mlp, "1", "2"), vectors),
    case("frozen top", frozen(mlp, "4"), vectors),
    case("frozen within a layer", frozen(mlp, "0.bias", "1.2.weight"), vectors),
    case("only the head trainable", frozen(mlp, "0", "1", "2"), vectors),
    case("frozen batch norm", frozen(evaluated(batch_norms, "1.0", "2"), "1.0", "2"), vectors),
    GROUPS,
]
