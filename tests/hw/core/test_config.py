"""What a core cannot be built with is refused, with what it can."""

from __future__ import annotations

import pytest

from relay_eps_hw.core.config import ARRANGEMENTS, CoreConfig
from relay_eps_hw.interface.descriptors import STREAMS

GOOD = {"lanes": 2, "ports": 4, "beat_bytes": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes": 3}, "3 lanes are not supported: use one of 1, 2, 4, 8, 16"),
        ({"lanes": True}, "True lanes are not supported"),
        ({"ports": 3}, "3 ports are not supported: use one of 1, 2, 4, 5"),
        ({"beat_bytes": 4}, "beats of 4 bytes are not supported: use one of 8, 16, 32, 64"),
        ({"burst_beats": 12}, "use a power of two from 1 to 256"),
        ({"burst_beats": 512}, "that 4 KiB hold"),
        ({"beat_bytes": 64, "burst_beats": 128}, "use a power of two from 1 to 64"),
        ({"address_bits": 31}, "address_bits = 31 is not supported: use 32 to 64"),
        ({"address_bits": 65}, "use 32 to 64"),
        ({"latency": 0}, "latency = 0 is not supported: use 1 to 4096"),
        ({"timeout": 1000}, "timeout = 1000 is not supported: use a power of two"),
        ({"timeout": 32}, "use 64 to"),
        ({"timeout": 128, "latency": 100}, "is near the latency of 100 clocks: use a longer one"),
        ({"build_id": 1 << 64}, "build_id"),
        ({"build_id": -1}, "build_id"),
    ],
    ids=str,
)
def test_what_does_not_work_together_is_refused_with_what_does(changes: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        CoreConfig(**{**GOOD, **changes})


@pytest.mark.parametrize("ports", ARRANGEMENTS)
def test_every_port_has_a_stream_and_every_stream_a_port(ports: int):
    places = CoreConfig(**{**GOOD, "ports": ports}).port_of
    assert set(places) == set(STREAMS)
    assert set(places.values()) == set(range(ports))


@pytest.mark.parametrize("burst_beats", [1, 16, 256])
@pytest.mark.parametrize("latency", [1, 100, 4096])
def test_queues_hold_what_arrives_in_the_latency(burst_beats: int, latency: int):
    config = CoreConfig(**GOOD, burst_beats=burst_beats, latency=latency)
    assert config.read_rows >= latency + 2 * burst_beats
    assert config.write_rows >= 4 * burst_beats
    assert config.outstanding * burst_beats >= latency
