"""A compiled design: cached, freed once, started at random; what goes wrong is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relay_eps_hw.faults import Faults
from relay_eps_hw.floats.add import Add
from relay_eps_hw.floats.formats import FP32
from relay_eps_hw.floats.widen import Widen
from relay_eps_sim import verilator
from relay_eps_sim.units import SimulatedUnit
from relay_eps_sim.verilator import BuildError, build_library, cache_folder, compiler

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
    ("named", "message"), [("no-such-compiler", "no-such-compiler could not be started"), ("false", "false failed")]
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
        sim.select_fault(0)
        assert sim.run(two_to_24, ONE) == two_to_24
        assert sim.run(negative_zero, negative_zero) == negative_zero


@pytest.mark.parametrize(
    "operands",
    [
        lambda: (ONE,),
        lambda: (ONE, ONE, ONE),
        lambda: (ONE, np.repeat(ONE, 2)),
        lambda: (ONE[None], ONE[None]),
    ],
    ids=["too few", "too many", "of two lengths", "of two dimensions"],
)
def test_operands_of_another_shape_are_refused(operands: Callable[[], tuple[np.ndarray, ...]]):
    with SimulatedUnit(Add(depth=2)) as sim, pytest.raises(ValueError, match="the operands a, b are one-dimensional"):
        sim.run(*operands())


def test_no_operands_give_no_results():
    nothing = np.empty(0, np.uint32)
    with SimulatedUnit(Add(depth=2)) as sim:
        assert sim.run(nothing, nothing).size == 0
