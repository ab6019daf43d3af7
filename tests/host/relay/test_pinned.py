"""Page-locked memory: unlocked while it is still there, by the process that locked it, and not shared with forks."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from relay_eps.relay.pinned import pinned_empty

NBYTES = 3 * 2**20 + 5


class Runtime:
    """Stands in for the CUDA runtime; notes whether what it is asked to unlock is still mapped."""

    def __init__(self) -> None:
        self.unlocked: list[bool] = []

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.unlocked.append(mapped(address))
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    stand_in = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: stand_in)
    return stand_in


def mapped(address: int) -> bool:
    """Whether this process has memory at ``address``."""
    ranges = (line.split(maxsplit=1)[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(first, 16) <= address < int(last, 16) for first, last in ranges)


def in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether ``check`` holds in a forked child, which ends without a trace."""
    child = os.fork()
    if child == 0:
        holds = False
        try:
            holds = check()
        finally:
            os._exit(int(holds))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_memory_is_unlocked_before_it_is_unmapped(runtime: Runtime) -> None:
    array = pinned_empty(NBYTES)
    view = torch.from_numpy(array[64:128].view(np.float32))
    view.fill_(1.0)
    del array
    gc.collect()
    assert runtime.unlocked == [], "a view holds the memory"
    del view
    gc.collect()
    assert runtime.unlocked == [True]


def test_memory_starts_on_a_page_and_is_exactly_as_long_as_asked(runtime: Runtime) -> None:
    array = pinned_empty(NBYTES)
    assert array.shape == (NBYTES,)
    assert array.ctypes.data % 4096 == 0
    assert not array.any()
    assert array.flags.writeable


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_get_the_memory(runtime: Runtime) -> None:
    array = pinned_empty(NBYTES)
    address = array.ctypes.data
    assert not in_a_fork(lambda: mapped(address))
    array.fill(1)
    assert mapped(address)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_unlocks_nothing(runtime: Runtime) -> None:
    arrays = [pinned_empty(NBYTES)]

    def unlocks() -> bool:
        arrays.clear()
        gc.collect()
        return bool(runtime.unlocked)

    assert not in_a_fork(unlocks)
    assert unlocks(), "the parent does"
