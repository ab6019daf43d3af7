"""Plain PyTorch beside the relay: the same model and micro-batches, gradient accumulation and fused AdamW."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor

from relay_eps.eps.formats import Format
from relay_eps.models.gpt import Gpt, next_byte_loss
from relay_eps.relay import memory
from relay_eps.relay.link import TORCH_DTYPES
from relay_eps.training.config import BETAS, TrainConfig
from relay_eps.training.events import Compared


class PlainTraining:
    """A second copy of the run's model, trained without the relay so that the two can be timed side by side.

    It needs memory of its own for weights, gradients and moments: 16 bytes a parameter in fp32.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._device = torch.device(config.device)
        self._model = Gpt(config.model, config.seed).to(self._device, TORCH_DTYPES[Format.parse(config.wire)])
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=config.lr, betas=BETAS, weight_decay=config.weight_decay, fused=True
        )
        self._steps = 0
        self._peak = 0
        self._relay_seconds: list[float] = []
        self._plain_seconds: list[float] = []

    def beside(self, relay_seconds: float, inputs: Tensor, targets: Tensor) -> None:
        """Time a plain step next to a relay step that took ``relay_seconds`` on the same batch."""
        if not self._steps:
            # The first step allocates the moments; the second has everything in place, and is measured.
            self._step(inputs, targets)
            with memory.measure(self._device, self._resident_bytes()) as peak:
                self._step(inputs, targets)
            self._peak = peak.bytes
        # Only the second of two steps in a row counts: the relay's have had a step of their own kind before them too.
        self._step(inputs, targets)
        started = time.perf_counter()
        self._step(inputs, targets)
        self._plain_seconds.append(time.perf_counter() - started)
        self._relay_seconds.append(relay_seconds)

    def result(self) -> Compared | None:
        """The medians; None before the first comparison."""
        if not self._plain_seconds:
            return None
        size = self._config.bytes_per_step
        return Compared(size / median(self._relay_seconds), size / median(self._plain_seconds), self._peak)

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        self._optimizer.zero_grad()
        pieces = zip(inputs.split(self._config.micro_batch), targets.split(self._config.micro_batch), strict=True)
        for piece, target in pieces:
            piece, target = piece.to(self._device), target.to(self._device)
            loss = next_byte_loss(self._model(piece), target)
            (loss * (len(piece) / len(inputs))).backward()
        if self._config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.clip)
        self._optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._steps += 1

    def _resident_bytes(self) -> int:
        parameters = sum(p.nbytes for p in self._model.parameters())
        moments = sum(
            value.nbytes
            for state in self._optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        # Gradients are allocated anew inside each step, and counted there.
        return parameters + moments
