"""The project itself: layering, sizes, dependencies, and that what README shows works."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import relay_eps

ROOT = Path(__file__).parents[1]
CODE = ("hw", "host", "sim", "tests", "benchmarks", "examples", "bitstreams")
LONGEST_FILE = 450

HOST = ROOT / "host" / "relay_eps"
#: For each part of the code, what it may not import, directly or inside a function.
FORBIDDEN = {
    ROOT / "hw" / "relay_eps_hw": ("relay_eps", "relay_eps_sim", "torch"),
    HOST: ("relay_eps_hw", "relay_eps_sim", "amaranth"),
    HOST / "eps": ("torch", "safetensors", "relay_eps.relay", "relay_eps.models", "relay_eps.cli"),
    HOST / "relay": ("relay_eps.cli", "relay_eps.models", "typer", "rich"),
}


def sources(*suffixes: str) -> list[Path]:
    return [path for top in CODE for path in sorted((ROOT / top).rglob("*")) if path.suffix in suffixes]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file; ``from a import b`` counts as a and as a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)


# --- layering


@pytest.mark.parametrize("part", FORBIDDEN, ids=lambda part: part.name)
def test_dependencies_point_one_way(part: Path):
    files = sorted(part.rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports(path)
        if any(within(name, package) for package in FORBIDDEN[part])
    ]
    assert not wrong


def test_no_relative_imports_hide_a_dependency():
    relative = [
        str(path.relative_to(ROOT))
        for path in sources(".py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative


# Refuses to find any module outside the standard library but those in ALLOWED, as on a machine that has no other.
BARE_MACHINE = """
import sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, *ALLOWED}:
            raise ModuleNotFoundError(f"a bare machine has no {name}", name=name)

ALLOWED = %r
sys.meta_path.insert(0, Bare())
"""


def test_importing_the_package_needs_no_other_package(tmp_path):
    done = python(BARE_MACHINE % (["relay_eps"],) + "import relay_eps; print(sorted(relay_eps.__all__))", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sorted(relay_eps.__all__))


def test_servers_need_numpy_alone(tmp_path):
    code = "from relay_eps import AdamHyper, EagerParamServer, GoldenEPS, SoftwareEPS; print(GoldenEPS.__name__)"
    done = python(BARE_MACHINE % (["relay_eps", "numpy"],) + code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "GoldenEPS"


def test_without_kernels_the_golden_model_still_works(tmp_path):
    code = "sys.modules['relay_eps.eps._kernels'] = None\nfrom relay_eps import GoldenEPS; print(GoldenEPS.__name__)"
    done = python(BARE_MACHINE % (["relay_eps", "numpy"],) + code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "GoldenEPS"


# --- the package's face


@pytest.mark.parametrize("name", relay_eps.__all__)
def test_every_exported_name_is_there(name: str):
    assert getattr(relay_eps, name) is not None
    assert name in dir(relay_eps)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Rely'"):
        relay_eps.Rely  # noqa: B018 - the look-up is what is tested


def test_type_checkers_see_the_names_that_are_exported():
    tree = ast.parse((HOST / "__init__.py").read_text())
    seen = {
        alias.name
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen | {"__version__"} == set(relay_eps.__all__)


# --- files and folders


def test_no_file_has_outgrown_one_reading():
    lines = {path.relative_to(ROOT): path.read_text().count("\n") for path in sources(".py", ".cpp", ".hpp")}
    assert lines
    assert {str(path): n for path, n in lines.items() if n > LONGEST_FILE} == {}


def test_every_python_file_says_what_it_is_for():
    silent = []
    for path in sources(".py"):
        tree = ast.parse(path.read_text())
        if tree.body and not ast.get_docstring(tree):
            silent.append(str(path.relative_to(ROOT)))
    assert not silent


# --- dependencies


def requirements() -> Iterator[tuple[Requirement, str]]:
    """Each requirement in pyproject.toml, those of the build and of the extras included, with its comment."""
    described = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[0]
    lists = re.findall(r"^([a-z]+) = \[\n(.*?)^\]", described, re.MULTILINE | re.DOTALL)
    for block in (body for name, body in lists if name != "classifiers"):
        for line in block.splitlines():
            match = re.fullmatch(r'\s+"([^"]+)",\s*(?:#\s*(.*))?', line)
            assert match, f"one requirement a line, with its reason, not {line!r}"
            yield Requirement(match[1]), match[2] or ""


def pins() -> Iterator[Requirement]:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text:
            yield Requirement(text)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_carries_its_reason():
    found = list(requirements())
    assert {"numpy", "torch", "nanobind", "pytest"} <= {requirement.name for requirement, _ in found}
    assert [requirement.name for requirement, reason in found if len(reason) < 5] == []


def test_every_dependency_is_pinned_for_ci_within_its_own_bounds():
    pinned: dict[str, list[str]] = {}
    for pin in pins():
        (specifier,) = pin.specifier
        assert specifier.operator == "==", f"{pin} is no exact pin"
        pinned.setdefault(canonical(pin.name), []).append(specifier.version)
    # pynq needs an environment of its own, with numpy below 2.
    wanted = {canonical(r.name): r for r, _ in requirements() if r.name not in ("pynq", "relay-eps")}
    assert set(pinned) == set(wanted)
    outside = [
        f"{name} {version} is not {wanted[name].specifier}"
        for name, versions in pinned.items()
        for version in versions
        if not wanted[name].specifier.contains(version)
    ]
    assert not outside


# --- what README shows


@pytest.mark.parametrize("document", ["README.md", "docs/hardware.md", "docs/core.md"])
def test_the_examples_of_a_document_run(document, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        done = python(block, tmp_path)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_every_make_target_that_the_documents_name_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        named = set(re.findall(r"`make ([a-z]+)", path.read_text()))
        assert named <= targets, f"{path.name} names a make target that does not exist"


def test_every_link_between_documents_leads_somewhere():
    documents = [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "bitstreams").rglob("*.md")),
    ]
    dead = [
        f"{path.relative_to(ROOT)} links to {target}"
        for path in documents
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert not dead
