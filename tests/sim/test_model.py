"""A compiled design: cached, freed once, started at random; what goes wrong is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relay_eps_hw.faults import Faults
from relay_eps_hw.floats.add import Add
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.widen import Widen
from relay_eps_sim import verilator
from relay_eps_sim.units import SimulatedUnit
from relay_eps_sim.verilator import BuildError, build_library, cache_folder, compiler, load

ONE = np.array([FP32.one], np.uint32)
DRIVER = Path(verilator.__file__).with_name("unit.cpp")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RELAY_EPS_CACHE", str(tmp_path))
    return tmp_path


def test_a_design_is_compiled_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch):
    with SimulatedUnit(Widen(depth=1)) as first:
        wanted = first.run(ONE, np.array([1], np.uint32))
    kept = sorted(path.name for path in empty_cache.iterdir())
    assert [Path(name).suffix for name in kept].count(".so") == 1

    def compile_nothing(*arguments: object) -> None:
        raise AssertionError("it is in the cache")

    monkeypatch.setattr(verilator, "_run", compile_nothing)
    with SimulatedUnit(Widen(depth=1)) as second:
        assert second.run(ONE, np.array([1], np.uint32)) == wanted


def test_a_design_that_cannot_be_compiled_leaves_nothing_behind(empty_cache: Path):
    with pytest.raises(BuildError, match=r"(?s)verilator_bin failed with status \d+:.*syntax error"):
        build_library("module unit(; endmodule", "unit", DRIVER)
    assert list(empty_cache.iterdir()) == []


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("no-such-compiler", r"no-such-compiler \(named by CXX\) could not be started"),
        ("false", "false failed"),
        ("g++ 'x", r"CXX=g\+\+ 'x is no command"),
    ],
)
def test_a_compiler_that_does_not_work_is_named(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, named: str, message: str
):
    monkeypatch.setenv("CXX", named)
    with pytest.raises(BuildError, match=message):
        SimulatedUnit(Widen(depth=1))
    assert not list(empty_cache.glob("*.so"))


def test_without_a_compiler_it_is_said_which_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"install clang\+\+ or g\+\+"):
        compiler()


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"RELAY_EPS_CACHE": "/here"}, "/here"),
        ({"XDG_CACHE_HOME": "/there"}, "/there/relay-eps"),
        ({"HOME": "/home/someone"}, "/home/someone/.cache/relay-eps"),
    ],
)
def test_the_cache_lies_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
):
    for name in ("RELAY_EPS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)


def test_a_closed_design_says_so():
    sim = SimulatedUnit(Widen(depth=1))
    sim.close()
    sim.close()
    with pytest.raises(RuntimeError, match="was closed"):
        sim.run(ONE, ONE)


def test_faults_are_selected_only_where_they_were_built_in():
    with SimulatedUnit(Widen(depth=1)) as sim, pytest.raises(ValueError, match="built without faults"):
        sim.select_fault(1)
    faults = Faults()
    with SimulatedUnit(Add(depth=2, faults=faults)) as sim:
        negative_zero = np.array([FP32.negative_zero], np.uint32)
        sim.select_fault(faults.number("add.tie-away"))
        two_to_24 = np.array([(FP32.bias + 24) << FP32.fraction], np.uint32)
        assert sim.run(two_to_24, ONE) == two_to_24 + 1
        with pytest.raises(ValueError, match="there is no fault 200: use 0 for none, or 1 to"):
            sim.select_fault(200)
        sim.select_fault(0)
        assert sim.run(two_to_24, ONE) == two_to_24
        assert sim.run(negative_zero, negative_zero) == negative_zero


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((ONE,), "1 operands were given: the unit takes a, b"),
        ((ONE, ONE, ONE), "3 operands were given: the unit takes a, b"),
        ((ONE, np.repeat(ONE, 2)), "the operands a, b are one-dimensional arrays of one length"),
        ((ONE[None], ONE[None]), "the operands a, b are one-dimensional arrays of one length"),
        ((ONE, ONE.view(np.float32)), r"b is an array of float32: pass bits, of floats \.view\(np\.uint32\)"),
        ((ONE, np.array([-1])), r"b has values outside 0 to 2\*\*32 - 1"),
    ],
    ids=["too few", "too many", "of two lengths", "of two dimensions", "floats", "negative"],
)
def test_operands_that_are_no_columns_of_bits_are_refused(operands: tuple[np.ndarray, ...], message: str):
    with SimulatedUnit(Add(depth=2)) as sim, pytest.raises(ValueError, match=message):
        sim.run(*operands)


@pytest.mark.parametrize("stalled", [1, -0.1, 1.5, float("nan")])
def test_a_probability_with_which_a_run_would_not_end_is_refused(stalled: float):
    with SimulatedUnit(Add(depth=2)) as sim, pytest.raises(ValueError, match=r"use a probability from 0 to 0\.99"):
        sim.run(ONE, ONE, stalled=stalled)


@pytest.mark.parametrize("seed", [-1, 1 << 31, 1.5, None])
def test_seeds_that_would_be_another_are_refused(seed: Any):
    with pytest.raises(ValueError, match=r"use 0 to 2\*\*31 - 1"):
        SimulatedUnit(Add(depth=2), seed=seed)


def test_a_unit_of_wider_ports_is_refused():
    with pytest.raises(ValueError, match="Add has ports of more than 32 bits: a, b, o"):
        SimulatedUnit(Add(FloatFormat(11, 52)))


def test_a_relative_cache_and_one_in_the_home_folder_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for named in ("here", "~/there"):
        monkeypatch.setenv("RELAY_EPS_CACHE", named)
        assert cache_folder().is_absolute()
    monkeypatch.setenv("RELAY_EPS_CACHE", "here")
    with SimulatedUnit(Widen(depth=1)) as sim:
        assert sim.run(ONE, np.array([0], np.uint32)) == ONE
    assert list((tmp_path / "here").glob("*.so"))


def test_a_cache_that_is_no_folder_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RELAY_EPS_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="file: File exists: name a folder for compiled designs with RELAY_EPS_CACHE"):
        SimulatedUnit(Widen(depth=1))


def test_a_damaged_library_is_named(tmp_path: Path):
    (tmp_path / "unit.so").write_bytes(b"\x7fELF")
    with pytest.raises(BuildError, match=r"delete .*unit\.so, and it will be compiled again"):
        load(tmp_path / "unit.so")


def test_no_operands_give_no_results():
    nothing = np.empty(0, np.uint32)
    with SimulatedUnit(Add(depth=2)) as sim:
        assert sim.run(nothing, nothing).size == 0
