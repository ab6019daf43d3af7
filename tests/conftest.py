"""What all tests share: how hypothesis runs, and random numbers that can be had again."""

from __future__ import annotations

import os
import secrets
import signal

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# On some CPUs MKL's products depend, in their last bits, on where in memory the operands lie; tests that compare bits
# need it to keep to one way. It is read when torch is first imported.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

# No deadline: the machine may be busy. A failure prints the blob that replays it. A suite that several servers run
# through is one class with several subclasses, which hypothesis calls differing executors.
settings.register_profile(
    "relay-eps", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.differing_executors]
)
settings.load_profile("relay-eps")

# A shell starts background jobs with Ctrl-C ignored, and Python then installs no handler: tests of Ctrl-C would wait
# for an exception that never comes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def seed() -> int:
    """A seed that differs from run to run; printed with a failure, and set by RELAY_EPS_TEST_SEED to replay it."""
    value = int(os.environ.get("RELAY_EPS_TEST_SEED") or secrets.randbits(32))
    print(f"replay with RELAY_EPS_TEST_SEED={value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Random numbers from `seed`."""
    return np.random.default_rng(seed)
