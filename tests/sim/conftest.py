"""Traffic as the tests of its harness have it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_sim.core import SimulatedCore
from tests.sim.traffic import attached, make


@pytest.fixture
def sim() -> Iterator[SimulatedCore]:
    with make() as made:
        yield made


@pytest.fixture
def memory(sim: SimulatedCore) -> NDArray[np.uint8]:
    return attached(sim)
