"""The shape of the byte-level GPT, as data; apart from the model so that reading a command line needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from relay_eps.errors import RelayError


@dataclass(frozen=True)
class GptConfig:
    """The model's shape. Raises RelayError for a shape that no model can have."""

    #: Transformer blocks; the chain has two layers more, the embedding and the head.
    layers: int = 4
    #: Features of a position.
    width: int = 128
    heads: int = 4
    #: Longest sequence, in bytes.
    context: int = 128
    dropout: float = 0.0
    #: Whether the embedding and the head share one weight.
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context"):
            value = getattr(self, name)
            if value < 1:
                raise RelayError(f"a GPT needs {name} of at least 1, not {value}")
        if self.width % self.heads:
            raise RelayError(
                f"a width of {self.width} cannot be shared among {self.heads} heads: choose a multiple of {self.heads}"
            )
        if not 0 <= self.dropout < 1:
            raise RelayError(f"dropout must be at least 0 and below 1, not {self.dropout}")
