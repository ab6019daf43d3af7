"""Uses an installed wheel in an environment that has numpy and nothing else: `python -I check_installed.py full|pure`.

``full`` is a wheel with the compiled kernels, ``pure`` one without. No test of pytest's: `make wheel` runs it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata

import numpy as np

import relay_eps
from relay_eps import AdamHyper, EagerParamServer, GoldenEPS, Section, SoftwareEPS
from relay_eps.eps import LayerLayout, TensorSpec
from relay_eps.errors import RelayEpsError


def check_environment() -> None:
    """That this really is the installed package, in a clean environment, with the files it should have."""
    assert "site-packages" in relay_eps.__file__, f"{relay_eps.__file__} is not the installed package"
    for absent in ("torch", "safetensors", "typer", "amaranth"):
        assert importlib.util.find_spec(absent) is None, f"{absent} is installed: this environment is not clean"
    installed = metadata.distribution("relay-eps")
    assert relay_eps.__version__ == installed.version
    files = {str(path) for path in installed.files or ()}
    tops = {name.split("/")[0] for name in files if ".dist-info/" not in name and not name.startswith("..")}
    assert tops == {"relay_eps", "relay_eps_hw", "relay_eps_sim"}, f"the wheel also installs {tops}"
    assert "relay_eps/py.typed" in files
    assert any(name.endswith("licenses/LICENSE") for name in files)
    (command,) = installed.entry_points.select(group="console_scripts")
    assert command.name == "relay-eps"
    assert importlib.util.find_spec("relay_eps.cli") is not None
    for package in ("relay_eps_hw", "relay_eps_sim"):
        assert importlib.util.find_spec(package) is not None


def train(server: EagerParamServer, steps: int = 3) -> np.ndarray:
    """The bits of p after ``steps`` of Adam on one layer with seeded weights and gradients."""
    rng = np.random.default_rng(2026)
    layout = LayerLayout("layer", (TensorSpec("weight", (37, 5)), TensorSpec("bias", (37,))))
    server.create(layout)
    server.write("layer", Section.P, rng.standard_normal(layout.size, np.float32)).result(60)
    for _ in range(steps):
        grad = rng.standard_normal(layout.size, np.float32)
        for start, stop in layout.gaps():
            grad[start:stop] = 0
        server.fold_apply("layer", grad, AdamHyper(), first=True).result(60)
    return server.read("layer", Section.P).result(60).view(np.uint32)


def check_servers(kernels: bool) -> None:
    """That the golden model runs, and `SoftwareEPS` too, to the same bits, or says why it does not."""
    with GoldenEPS() as golden:
        expected = train(golden)
    if kernels:
        with SoftwareEPS() as software:
            assert np.array_equal(train(software), expected), "SoftwareEPS and the golden model differ"
        return
    refusal = "none"
    try:
        SoftwareEPS().close()
    except RelayEpsError as error:
        refusal = str(error)
    assert "kernels" in refusal, f"a wheel without kernels must say so, not: {refusal}"


if __name__ == "__main__":
    kind = sys.argv[1]
    check_environment()
    check_servers(kernels={"full": True, "pure": False}[kind])
    print(f"the {kind} wheel works with numpy alone")
