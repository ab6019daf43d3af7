"""Every example runs, at a small size, and does what it says."""

from __future__ import annotations

import re

import pytest

from examples import own_model


def test_own_model_learns_to_read_backwards(capsys: pytest.CaptureFixture[str]) -> None:
    own_model.main(steps=40)
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+)", capsys.readouterr().out)]
    assert losses[-1] < losses[0] / 1.2
