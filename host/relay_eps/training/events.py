"""What happens in a run, as data: the training loop tells it, and reporters show it, log it or print it as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Started:
    """A run, or its continuation, is about to begin."""

    #: The run's folder; None where nothing is kept.
    run: str | None
    #: Steps done before, and steps in all.
    step: int
    steps: int
    parameters: int
    #: Layers of the relay.
    layers: int
    #: The server's own name.
    eps: str
    device: str
    bytes_per_step: int
    #: The data: what was read, how many files and bytes, and its sha256.
    source: str
    files: int
    size: int
    fingerprint: str
    config: dict[str, Any]


@dataclass(frozen=True)
class Stepped:
    """A step was done; ``step`` counts from 1."""

    step: int
    #: Of the mini-batch before the update, in nats a byte.
    loss: float
    lr: float
    tokens_per_second: float
    skipped: bool
    #: Before clipping; None without clipping.
    grad_norm: float | None
    #: The device's peak in bytes, measured in the session's first step.
    device_peak: int
    #: Bytes that the server stores.
    eps_bytes: int


@dataclass(frozen=True)
class Evaluated:
    """The validation loss after ``step`` steps, in nats a byte."""

    step: int
    loss: float


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on the disk."""

    step: int
    path: str


@dataclass(frozen=True)
class Noted:
    """Something that the user should know, once."""

    text: str


@dataclass(frozen=True)
class Compared:
    """Plain PyTorch on the same model, data and micro-batches, in medians of interleaved steps."""

    #: Of the relay, in the steps beside plain PyTorch's.
    relay_tokens_per_second: float
    plain_tokens_per_second: float
    #: Weights, gradients and moments included.
    plain_device_peak: int


@dataclass(frozen=True)
class Ended:
    """The run reached its last step, or was interrupted between two."""

    step: int
    steps: int
    interrupted: bool
    run: str | None
    #: Validation losses in nats a byte: before the first step of all, and now (None where interrupted).
    first_loss: float
    last_loss: float | None
    #: Median over the session's steps but the first ones; None where there were too few.
    tokens_per_second: float | None
    comparison: Compared | None
    #: None where the session did no step.
    device_peak: int | None
    eps_bytes: int
    eps_bytes_per_parameter: float
    seconds: float
    #: sha256 of weights, moments, counts of applies, seed and step (`relay_eps.statehash`).
    hash: str


Event = Started | Stepped | Evaluated | Saved | Noted | Ended
Report = Callable[[Event], None]
