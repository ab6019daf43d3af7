"""What a training run is: everything that its bits depend on, as data that a run folder keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from relay_eps.eps.formats import Format
from relay_eps.errors import RelayError
from relay_eps.models.gpt_config import GptConfig

#: The parameter servers that a run can ask for.
SERVERS = ("software",)
#: The software server's own limit; torch crashes on exit after far more.
MOST_THREADS = 1024
#: No count of sequences or steps is larger.
MOST = 2**31 - 1
#: Adam's betas; 0.95 is what language models are commonly trained with.
BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class TrainConfig:
    """A run of the byte-level GPT. Raises RelayError, naming the value and what it may be, for a run that cannot be."""

    #: Text files and folders, absolute; none for the Python library's source.
    paths: tuple[str, ...] = ()
    model: GptConfig = field(default_factory=GptConfig)
    #: Sequences a step, and sequences the device works on at a time.
    batch: int = 16
    micro_batch: int = 8
    steps: int = 500
    #: The highest learning rate; it is reached after ``warmup`` steps and falls to a tenth along a cosine.
    lr: float = 3e-3
    warmup: int = 50
    weight_decay: float = 0.1
    #: Global-norm clipping, which defers every update to the end of the backward; None for none.
    clip: float | None = None
    mode: str = "exact"
    stash: str = "device"
    wire: str = "fp32"
    eps: str = "software"
    device: str = "cpu"
    #: A modelled link of this many gigabits a second between EPS and device; None for none.
    link_gbps: float | None = None
    #: Threads for torch and for the EPS; None for what this process may use.
    threads: int | None = None
    seed: int = 0
    #: Save, and evaluate, every so many steps; 0 for the end only.
    save_every: int = 0
    eval_every: int = 100
    #: Sequences that an evaluation looks at.
    eval_sequences: int = 128

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batch", "steps", "eval_sequences"):
            self._refuse(name, getattr(self, name) < 1, "at least 1")
        for name in ("lr", "warmup", "weight_decay", "save_every", "eval_every"):
            self._refuse(name, not getattr(self, name) >= 0, "at least 0")
        for name in ("clip", "link_gbps", "threads"):
            value = getattr(self, name)
            self._refuse(name, value is not None and not value > 0, "above 0")
        self._refuse("threads", self.threads is not None and self.threads > MOST_THREADS, f"at most {MOST_THREADS}")
        for name in ("batch", "micro_batch", "steps", "eval_sequences"):
            self._refuse(name, getattr(self, name) > MOST, f"at most {MOST}")
        self._refuse("seed", not 0 <= self.seed < 2**63, "at least 0 and below 2**63")
        Format.parse(self.wire)
        if self.link_gbps is not None and self.device != "cpu":
            raise RelayError("a modelled link stands in for a device's own: leave out --link-gbps, or use --device cpu")
        if self.eps not in SERVERS:
            raise RelayError(f"there is no parameter server {self.eps!r}: this version has {', '.join(SERVERS)}")

    def _refuse(self, name: str, wrong: bool, allowed: str) -> None:
        if wrong:
            raise RelayError(f"{name.replace('_', '-')} must be {allowed}, not {getattr(self, name)}")

    @property
    def bytes_per_step(self) -> int:
        """Bytes of text that a step trains on."""
        return self.batch * self.model.context

    def with_steps(self, steps: int) -> TrainConfig:
        """The same run, of another length; the learning rate's cosine stretches with it."""
        return replace(self, steps=steps)

    def to_record(self) -> dict[str, Any]:
        """As what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TrainConfig:
        """The opposite of `to_record`; raises RelayError for names that this version does not know, or lacks."""
        _check_names(cls, record)
        _check_names(GptConfig, record["model"])
        return cls(**{**record, "paths": tuple(record["paths"]), "model": GptConfig(**record["model"])})


def _check_names(kind: type, record: Mapping[str, Any]) -> None:
    expected = {f.name for f in fields(kind)}
    if wrong := expected.symmetric_difference(record):
        raise RelayError(
            f"the run's settings are another version's: {', '.join(sorted(wrong))} unknown or missing; "
            "resume it with the relay-eps that started it"
        )
