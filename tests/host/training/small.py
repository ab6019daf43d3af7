"""A run so small that a step takes milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relay_eps.models.gpt_config import GptConfig
from relay_eps.training.config import TrainConfig
from relay_eps.training.events import Event

MODEL = GptConfig(layers=2, width=16, heads=2, context=8)


def text_file(folder: Path) -> Path:
    """A text of a few thousand bytes."""
    file = folder / "text.txt"
    file.write_text("".join(f"line {i}: the relay runs one layer at a time\n" for i in range(80)))
    return file


def config(folder: Path, **changes: Any) -> TrainConfig:
    """A run over `text_file`, in ``folder``."""
    small: dict[str, Any] = {
        "paths": (str(text_file(folder)),),
        "model": MODEL,
        "batch": 6,
        "micro_batch": 4,
        "steps": 6,
        "warmup": 2,
        "eval_every": 0,
        "eval_sequences": 8,
    }
    return TrainConfig(**{**small, **changes})


class Events(list[Event]):
    """A reporter that keeps what it is told."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: type) -> list[Any]:
        """The events of one kind."""
        return [event for event in self if isinstance(event, kind)]
