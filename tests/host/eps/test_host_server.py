"""The servers in host memory, beyond the contract: arguments, forgotten servers, interruptions, forks."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relay_eps.eps import AdamHyper, Format, GoldenEPS, HostEPS, SoftwareEPS
from relay_eps.errors import ContractError, ServerClosed
from tests.host.eps.reference import Pair, layout

# --- arguments


@pytest.mark.parametrize("fmt", list(Format))
@pytest.mark.parametrize("junk", [1, np.nan, -np.inf])
def test_padding_that_is_not_zero_is_refused(fmt: Format, junk: float) -> None:
    with GoldenEPS() as server:
        pair = Pair(server, layout("layer", (3,), (40,)))
        grad = np.zeros(pair.layout.size, fmt.carrier)
        grad[3] = junk if fmt is not Format.BF16 else 0x3F80
        calls: list[Callable[[], Any]] = [
            lambda: server.fold("layer", grad, AdamHyper(), first=True),
            lambda: server.fold_apply("layer", grad, AdamHyper(), first=True),
            lambda: server.accumulate("layer", grad, first=True),
        ]
        for call in calls:
            with pytest.raises(ContractError, match=r"'layer'.*padding"):
                call()
        grad[3] = -0.0 if fmt is not Format.BF16 else 0x8000
        server.fold("layer", grad, AdamHyper(), first=True)
        pair.check()


def test_h6_a_tensor_where_an_array_belongs_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    with GoldenEPS() as server:
        server.create(layout("layer", (32,)))
        with pytest.raises(ContractError, match=r"'layer'.*numpy array, not Tensor"):
            server.fold("layer", torch.zeros(32), AdamHyper(), first=True)


def test_an_unknown_wire_format_is_refused_before_any_thread_starts() -> None:
    threads = threading.active_count()
    for make in (GoldenEPS, SoftwareEPS):
        with pytest.raises(ContractError, match="fp8"):
            make(wire="fp8")
    assert threading.active_count() == threads


# --- the life of a server


def eventually(true: Callable[[], bool]) -> bool:
    for _ in range(500):
        if true():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("make", [GoldenEPS, SoftwareEPS])
def test_h1_a_forgotten_server_ends_its_threads_in_silence(make: Callable[[], HostEPS]) -> None:
    before = set(threading.enumerate())
    server = make()
    server.create(layout("layer", (70,)))
    ticket = server.apply("layer", AdamHyper())
    lease = server.lease("layer").result()
    parked = server.apply("layer", AdamHyper())
    alive = weakref.ref(server)
    del server
    gc.collect()
    assert alive() is None
    ticket.result(10)
    with pytest.raises(ServerClosed):
        parked.result(10)
    assert eventually(lambda: set(threading.enumerate()) <= before)
    lease.release()


def test_ctrl_c_in_synchronize_leaves_the_server_sound(rng: np.random.Generator) -> None:
    with GoldenEPS() as server:
        pair = Pair(server, layout("layer", (70,)))
        pair.fill(rng)
        lease = server.lease("layer").result()
        pair.apply(AdamHyper())
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            server.synchronize()
        timer.join()
        lease.release()
        server.synchronize()
        pair.fold_apply(pair.gradient(rng), AdamHyper(), first=True, scale=1.0)
        pair.check()


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )


PRELUDE = """
import numpy as np
from relay_eps.eps import AdamHyper, GoldenEPS, LayerLayout, SoftwareEPS, TensorSpec
layout = LayerLayout("layer", (TensorSpec("t", (100_000,)),))
"""


@pytest.mark.parametrize("make", ["GoldenEPS", "SoftwareEPS"])
def test_a_server_that_was_not_closed_does_not_hang_the_process(make: str) -> None:
    done = run_python(
        PRELUDE
        + textwrap.dedent(f"""
        server = {make}()
        server.create(layout)
        for _ in range(50):
            server.fold_apply("layer", np.zeros(layout.size, np.float32), AdamHyper(), first=True)
        lease = server.lease("layer")
        server.apply("layer", AdamHyper())
        print("end")
        """)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_told_to_make_its_own_server() -> None:
    done = run_python(
        PRELUDE
        + textwrap.dedent("""
        import os, warnings
        from relay_eps.errors import ServerClosed
        warnings.simplefilter("ignore", DeprecationWarning)
        server = SoftwareEPS(threads=2)
        server.create(layout)
        server.apply("layer", AdamHyper()).result()
        child = os.fork()
        if not child:
            try:
                server.apply("layer", AdamHyper())
            except ServerClosed as error:
                print("child:", error, flush=True)
            own = SoftwareEPS(threads=2)
            own.create(layout)
            own.apply("layer", AdamHyper()).result()
            raise SystemExit(0)
        _, status = os.waitpid(child, 0)
        server.apply("layer", AdamHyper()).result()
        print("parent:", status, server.applies("layer"))
        """)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "child: the server belongs to the parent process: make one in this process",
        "parent: 0 2",
    ]


def test_the_contract_and_the_golden_server_need_numpy_alone() -> None:
    done = run_python(
        PRELUDE.replace("SoftwareEPS, ", "")
        + textwrap.dedent("""
        import sys
        with GoldenEPS() as server:
            server.create(layout)
        print([name for name in ("torch", "relay_eps.eps._kernels") if name in sys.modules])
        """)
    )
    assert (done.stderr, done.stdout) == ("", "[]\n")


# --- the software server


def test_h3_the_name_tells_instruction_set_and_threads() -> None:
    with SoftwareEPS(threads=1, instruction_set="plain") as server:
        assert server.capabilities.name == "software (plain, 1 thread)"
    with SoftwareEPS(threads=3) as server:
        assert server.capabilities.name.endswith(", 3 threads)")
