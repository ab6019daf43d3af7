"""Every benchmark runs, at a tiny size, and prints its table. What it measures is not judged here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import adama, eps, gpu, memory, relay

QUICK = {
    "eps": (eps, ["--parameters", "1e4", "--threads", "1", "--rounds", "2"], "fold_apply, speed over torch's"),
    "relay": (
        relay,
        ["--layers", "2", "--width", "16", "--batch", "8", "--micro-batches", "2", "--rounds", "2"],
        "over plain",
    ),
    "memory": (
        memory,
        ["--layers", "2", "--width", "32", "--depths", "2", "3", "--micro-batches", "1", "2"],
        "layers beyond",
    ),
    "gpu": (gpu, ["--modelled", "--minutes", "0.05"], "not a GPU"),
    "adama": (adama, ["--steps", "2", "--seeds", "1", "--micro-batches", "2", "--lr", "1e-3"], "nats a byte"),
}


@pytest.mark.parametrize("name", QUICK)
def test_a_benchmark_prints_its_table_and_writes_json(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module: ModuleType
    module, options, expected = QUICK[name]
    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", [name, *options, "--json", str(file)])
    module.main()
    assert expected in capsys.readouterr().out
    assert json.loads(file.read_text())


def test_a_part_that_is_short_of_time_says_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--modelled", "--minutes", "0"])
    gpu.main()
    assert "left out for want of time" in capsys.readouterr().out
