"""A 16-bit format that this processor has no instructions for is said to be slow, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from relay_eps.eps import Format
from relay_eps.relay import probe

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for call in (probe.warn_if_slow, probe.slowdown):
        call.cache_clear()
    yield
    for call in (probe.warn_if_slow, probe.slowdown):
        call.cache_clear()


def times(monkeypatch: pytest.MonkeyPatch, slow: float) -> None:
    monkeypatch.setattr(probe, "_best_time", lambda dtype: 1.0 if dtype is torch.float32 else slow)


def test_h5_a_slow_format_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    times(monkeypatch, 40.0)
    for _ in range(2):
        probe.warn_if_slow(CPU, Format.BF16)
    assert [r.getMessage() for r in caplog.records] == [
        "bf16 products run 40 times slower than fp32 on this CPU: use wire='fp32'"
    ]


def test_h5_a_fast_one_fp32_and_a_gpu_are_not_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times(monkeypatch, 1.5)
    probe.warn_if_slow(CPU, Format.FP16)
    times(monkeypatch, 40.0)
    probe.warn_if_slow(CPU, Format.FP32)
    probe.warn_if_slow(torch.device("cuda", 0), Format.BF16)
    assert not caplog.records


def test_the_factor_is_measured() -> None:
    assert probe.slowdown(Format.BF16) > 0
    assert probe.slowdown(Format.BF16) == probe.slowdown(Format.BF16)
