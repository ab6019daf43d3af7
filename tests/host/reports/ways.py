"""The ways of training that a test of the user reports goes, and the plain loop beside each."""

from __future__ import annotations

from typing import Any

import pytest

from relay_eps.relay import ModelledLink
from tests.host.relay.following import make_reference
from tests.host.relay.models import TIED, Case, untied
from tests.host.relay.reference import Reference

WAYS: dict[str, dict[str, Any]] = {
    "exact": {},
    "exact, slots, stash on the host": {"link": ModelledLink(jitter=0.001), "stash": "host"},
    "adama": {"mode": "adama"},
    "adama, slots": {"mode": "adama", "link": ModelledLink(jitter=0.001)},
    "deferred": {"max_grad_norm": 0.1},
    "deferred, slots": {"max_grad_norm": 0.1, "link": ModelledLink(jitter=0.001)},
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def reference_of(case: Case, way: dict[str, Any], micro_batch: int = 5) -> Reference:
    """The plain loop beside a relay that goes this way."""
    shared = {key: way[key] for key in ("mode", "max_grad_norm") if key in way}
    if case is TIED:
        return make_reference(*untied(case), micro_batch=micro_batch, **shared)
    return make_reference(case, micro_batch=micro_batch, **shared)
