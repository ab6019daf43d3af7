"""A run's settings: what is refused, and that they survive their record."""

from __future__ import annotations

import json

import pytest

from relay_eps.errors import RelayEpsError
from relay_eps.models.gpt_config import GptConfig
from relay_eps.training.config import TrainConfig


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"micro_batch": 0}, "micro-batch must be at least 1, not 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"lr": float("nan")}, "lr must be at least 0, not nan"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"clip": float("nan")}, "clip must be above 0"),
        ({"link_gbps": -1.0}, "link-gbps must be above 0"),
        ({"threads": 0}, "threads must be above 0"),
        ({"threads": 1025}, "threads must be at most 1024"),
        ({"batch": 10**20}, "batch must be at most 2147483647"),
        ({"link_gbps": 1.0, "device": "cuda"}, "leave out --link-gbps"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**63}, "seed must be at least 0 and below"),
        ({"wire": "fp8"}, "unknown format 'fp8': use one of fp32, bf16, fp16"),
        ({"eps": "fpga"}, "no parameter server 'fpga': this version has software"),
    ],
)
def test_impossible_settings_are_refused_by_name(wrong: dict, message: str):
    with pytest.raises(RelayEpsError, match=message):
        TrainConfig(**wrong)


def test_settings_survive_json():
    config = TrainConfig(paths=("/a", "/b"), model=GptConfig(tied=True, dropout=0.1), clip=1.5, lr=1 / 3, threads=2)
    assert TrainConfig.from_record(json.loads(json.dumps(config.to_record()))) == config


@pytest.mark.parametrize("part", ["run", "model"])
def test_settings_of_another_version_are_refused_by_name(part: str):
    record = TrainConfig().to_record()
    part_of_it = record if part == "run" else record["model"]
    part_of_it["rotary"] = True
    with pytest.raises(RelayEpsError, match="another version's: rotary unknown or missing"):
        TrainConfig.from_record(record)
    del part_of_it["rotary"], part_of_it["seed" if part == "run" else "width"]
    with pytest.raises(RelayEpsError, match="unknown or missing"):
        TrainConfig.from_record(record)
