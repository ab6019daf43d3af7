"""A disk that really is full: a tiny file system where one can be mounted, and a file size limit everywhere."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relay_eps.checkpoint import newest, save
from relay_eps.eps import LayerLayout, Section, TensorSpec
from relay_eps.errors import CheckpointError
from tests.host.checkpoint.states import checkpoint, server

ROOT = Path(__file__).parents[3]


def fill(folder: Path) -> None:
    """Save larger and larger models until one does not fit; check that the one before is there, and nothing else."""
    elements = 1 << 10
    for step in range(20):
        layout = LayerLayout("x", (TensorSpec("x", (elements << step,)),))
        with server((layout,)) as eps:
            eps.write("x", Section.P, np.full(layout.size, step, np.float32)).result()
            try:
                save(folder, eps, checkpoint(step))
            except CheckpointError as error:
                found = newest(folder)
                assert found is not None
                assert [path.name for path in folder.iterdir()] == [found.name] == [f"step-{step - 1:08d}"]
                print(error)
                return
    raise AssertionError("the disk did not fill")


def test_a_file_that_may_not_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        fill(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().out
    assert "layer-00000.safetensors: " in said
    assert "File too large (os error 27). It takes over 1,572,864 bytes" in said


def test_a_full_file_system(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=1m none "{tmp_path}"'
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*namespace, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    ran = subprocess.run(
        [*namespace, f'{mount} && exec "$0" -m tests.host.checkpoint.test_full_disk "{tmp_path}"', sys.executable],
        cwd=ROOT,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "No space left on device (os error 28). It takes over" in ran.stdout
    assert "are free; make room or save into another folder" in ran.stdout


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
