"""Building and platforms: what users of the nearest systems reported, and what happens here instead.

The names follow public reports, in the order in which this project lists them. H1: DeepSpeed issues 889, 1846, 3094,
3969, 7061. H2: DeepSpeed issues 788, 6625, 7556. H3: DeepSpeed issue 6363. H4: DeepSpeed issues 1279, 2772, 6636,
torchao's CPU offload. H5: PyTorch issue 146508.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import pkgutil
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relay_eps
from relay_eps.eps import SoftwareEPS, kernels
from relay_eps.eps.formats import Format
from relay_eps.eps.kernels import KernelArithmetic, instruction_sets
from relay_eps.errors import ContractError, RelayEpsError
from relay_eps.relay import LossScale, ModelledLink, Relay, probe
from tests.host.relay.following import LR, make_relay, take_step, whole_state
from tests.host.relay.models import CASES, MLP

ROOT = Path(__file__).parents[3]

# Whatever would start another program, open a compiler's output or ask for CUDA ends the process.
_WATCH = """
import sys

def watch(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"):
        raise SystemExit(f"{event} {args[:2]}")
    if event == "ctypes.dlopen" and any(word in str(args[0]).lower() for word in ("cuda", "nvml", "nvidia")):
        raise SystemExit(f"{event} {args}")

sys.addaudithook(watch)
"""

_TRAIN = """
import torch
from relay_eps import ModelledLink, Relay

for settings in ({}, {"mode": "adama", "stash": "host", "link": ModelledLink()}, {"max_grad_norm": 0.1}):
    with Relay(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), micro_batch=2, **settings) as relay:
        inputs = torch.randn(5, 4)
        relay.step(inputs, inputs[:, :2], torch.nn.functional.mse_loss)
        relay.evaluate(inputs, inputs[:, :2], torch.nn.functional.mse_loss)
print("trained")
"""


def test_H1_H4_a_machine_without_compiler_and_cuda_imports_and_trains(tmp_path: Path) -> None:
    # torch itself is imported before the watch begins: what it looks for is its own affair.
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import torch" + _WATCH + _TRAIN],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("trained\n", "", 0)
    assert not list(tmp_path.iterdir()), "nothing was built or cached"


# --- H1


WAYS_IN: dict[str, Callable[[], Any]] = {
    "server": SoftwareEPS,
    "arithmetic": KernelArithmetic,
    "relay": lambda: make_relay(MLP),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_H1_missing_kernels_are_told_with_their_cause_by_every_way_in(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = ImportError("_kernels.so: version `GLIBCXX_3.4.32' not found")
    monkeypatch.setattr(kernels, "_missing", cause)
    with complaints_of_destructors() as complaints:
        with pytest.raises(RelayEpsError, match=r"GLIBCXX_3\.4\.32.*Install") as caught:
            WAYS_IN[way]()
        chain = [caught.value, caught.value.__cause__]
        del caught
        gc.collect()
    assert chain[1] is cause, "the cause itself, once, and not what it led to"
    assert not complaints


def test_H1_missing_kernels_leave_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, untouched = MLP.make(), MLP.make().state_dict()
    monkeypatch.setattr(kernels, "_missing", ImportError("no kernels"))
    with pytest.raises(RelayEpsError):
        Relay(model)
    assert all(torch.equal(value, untouched[name]) for name, value in model.state_dict().items())


@contextmanager
def complaints_of_destructors() -> Iterator[list[Any]]:
    """Whatever a destructor, a finalizer or a thread raises in the block, which ends with a collection."""
    complaints: list[Any] = []
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = complaints.append
    threading.excepthook = complaints.append
    try:
        yield complaints
        gc.collect()
    finally:
        sys.unraisablehook, threading.excepthook = hooks


def our_classes() -> list[type]:
    """Every class of the package that can be made without arguments by ``__new__``."""
    modules = [m.name for m in pkgutil.walk_packages(relay_eps.__path__, "relay_eps.") if "__main__" not in m.name]
    found = {
        thing
        for name in modules
        for thing in vars(import_module(name)).values()
        if inspect.isclass(thing) and thing.__module__.startswith("relay_eps") and not inspect.isabstract(thing)
    }
    return sorted(found, key=lambda c: (c.__module__, c.__qualname__))


def test_H1_an_object_whose_construction_failed_is_dropped_in_silence() -> None:
    made = 0
    with complaints_of_destructors() as complaints:
        for each in our_classes():
            half_make: Any = each.__new__
            try:
                half_make(each)
            except TypeError:
                continue  # a class that cannot be half made: protocols, enumerations, compiled ones
            made += 1
    assert made > 50
    assert not complaints


def test_H1_live_objects_are_dropped_in_silence() -> None:
    settings: list[dict[str, Any]] = [{}, {"link": ModelledLink()}, {"mode": "adama"}, {"max_grad_norm": 1.0}]
    with complaints_of_destructors() as complaints:
        for each in settings:
            relay = make_relay(MLP, micro_batch=4, **each)
            take_step(relay, MLP, 0, 6)
            lease = relay.server.lease(relay.server.layers()[0])
            del relay, lease
    assert not complaints


# --- H2


def test_H2_every_instruction_set_of_this_processor_trains_to_the_same_bits() -> None:
    states = []
    for instruction_set in instruction_sets():
        for wire in (Format.FP32, Format.BF16, Format.FP16):
            # The layers compute in torch's fp32 either way: only the server's path differs.
            settings: dict[str, Any] = {"micro_batch": 5, "max_grad_norm": 0.1}
            server = SoftwareEPS(instruction_set=instruction_set, threads=2)
            with server, make_relay(MLP, server=server, **settings) as relay:
                for step in range(3):
                    take_step(relay, MLP, step, 12)
                states.append(whole_state(relay) | narrowed(relay, wire, instruction_set))
    per_set = len(states) // len(instruction_sets())
    for i, state in enumerate(states):
        wanted = states[i % per_set]
        assert {name: value.tobytes() for name, value in state.items()} == {
            name: value.tobytes() for name, value in wanted.items()
        }


def narrowed(relay: Relay, wire: Format, instruction_set: str) -> dict[str, np.ndarray]:
    """The relay's weights as a server with this wire would send them."""
    sent = {}
    with SoftwareEPS(instruction_set=instruction_set, threads=1, wire=wire) as server:
        for eps in relay.eps_layers:
            server.create(eps.layout)
            server.write(eps.name, relay_eps.Section.P, relay.server.read(eps.name, relay_eps.Section.P).result())
            sent[f"{eps.name}/sent"] = np.empty(eps.layout.size, wire.carrier)
            server.fetch(eps.name, sent[f"{eps.name}/sent"]).result()
    return sent


#: Flags of /proc/cpuinfo that each path of the kernels is compiled for.
FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "f16c"},
    "avx2": {"avx2", "f16c"},
    "neon": {"asimd"},
    "plain": set(),
}


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="reads the processor's flags from /proc")
def test_H2_paths_follow_the_processors_flags_whoever_made_it() -> None:
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = set(found.group(1).split()) if found else set()
    assert set(instruction_sets()) == {name for name in kernels_built() if flags >= FLAGS[name]}


def kernels_built() -> set[str]:
    """The paths that this platform's build has."""
    return {"plain"} | ({"neon"} if os.uname().machine in ("aarch64", "arm64") else {"avx2", "avx512"})


def test_H2_no_build_is_tuned_to_the_machine_that_makes_it() -> None:
    # `-march=native` on one processor is an illegal instruction on the next: flags belong to single files.
    lists = (ROOT / "host" / "kernels" / "CMakeLists.txt").read_text()
    assert "target_compile_options" in lists
    for tuned in ("-march", "-mtune", "-mcpu", "native", "-ffast-math"):
        for line in lists.splitlines():
            assert tuned not in line.partition("#")[0], line
    everywhere = re.findall(r"target_compile_options\(([^)]*)\)", lists)
    assert not [flag for group in everywhere for flag in group.split() if flag.startswith("-m")]


# --- H3


@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_H3_the_path_can_be_asked_for_and_is_told(instruction_set: str) -> None:
    with SoftwareEPS(instruction_set=instruction_set, threads=1) as server:
        assert instruction_set in server.capabilities.name


def test_H3_a_path_that_cannot_be_had_is_refused_and_never_replaced() -> None:
    for instruction_set in ("avx1024", "AVX2", "", "sse"):
        with pytest.raises(ContractError, match="plain"):
            SoftwareEPS(instruction_set=instruction_set)


def test_H3_a_slow_path_says_so_once_however_many_servers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "instruction_sets", lambda: ("plain",))
    kernels._warn_of_plain.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            make_relay(MLP).close()
        SoftwareEPS(instruction_set="plain").close()
    kernels._warn_of_plain.cache_clear()
    assert [str(w.message) for w in said if "on plain code" in str(w.message)] == [str(w.message) for w in said], (
        "nothing else was warned of"
    )
    assert len(said) == 1


# --- H4


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_H4_training_on_a_cpu_never_asks_for_cuda(case: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("CUDA was asked for")

    for name in ("_lazy_init", "is_available", "device_count", "current_device", "synchronize", "cudart"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    for settings in ({}, {"stash": "host", "link": ModelledLink()}, {"loss_scale": LossScale(2.0**8)}):
        with make_relay(case, micro_batch=5, **settings) as relay:
            take_step(relay, case, 0, 12)
            batch = case.batch(0, 12)
            relay.evaluate(batch.inputs, batch.targets, case.loss, side=batch.side)
            with relay.measure_device_peak():
                take_step(relay, case, 1, 12)
            relay.save(tmp_path / "checkpoints")
            relay.load(tmp_path / "checkpoints")


def test_H4_a_device_that_is_not_there_is_refused_in_a_sentence_and_leaves_the_model_alone() -> None:
    for device in ("meta", *(() if torch.cuda.is_available() else ("cuda", "cuda:3"))):
        model = MLP.make()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(RelayEpsError, match=r"use (device=)?'cpu'"):
            Relay(model, lr=LR, device=device)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --- H5


class _Clock:
    """Time that only matrix products take: one unit in fp32, ``factor`` in any other format."""

    def __init__(self, factor: float) -> None:
        self.now = 0.0
        self.factor = factor

    def mm(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        self.now += 1.0 if a.dtype is torch.float32 else self.factor
        return a


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Makes this a processor on which 16-bit products take ``factor`` times as long as fp32 ones."""

    def choose(factor: float) -> None:
        clock = _Clock(factor)
        monkeypatch.setattr(torch, "mm", clock.mm)
        monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
        forget()

    def forget() -> None:
        probe.slowdown.cache_clear()
        probe.warn_if_slow.cache_clear()

    yield choose
    forget()


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("factor", [1.0, 1.9, 3.0, 40.0, 500.0])
def test_H5_a_16_bit_format_without_instructions_is_measured_and_said_once(
    wire: str, factor: float, processor: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    processor(factor)
    for _ in range(2):
        Relay(MLP.make(), wire=wire).close()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    if factor < 2:
        assert not said
    else:
        assert said == [f"{wire} products run {factor:.0f} times slower than fp32 on this CPU: use wire='fp32'"]


def test_H5_nobody_is_slowed_by_default(processor: Callable[[float], None], caplog: pytest.LogCaptureFixture) -> None:
    processor(500.0)
    with make_relay(MLP) as relay:
        take_step(relay, MLP, 0, 4)
        assert relay.server.capabilities.wire is Format.FP32
        assert {p.dtype for p in relay.model.parameters()} == {torch.float32}
    assert probe.slowdown.cache_info().misses == 0, "nothing was measured where nothing depends on it"
    assert not caplog.records
