"""The harness of a core, with mere traffic in its place: what its memory does, and how it runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from relay_eps_hw.core.config import CoreConfig
from relay_eps_sim.core import MemoryModel, SimulatedCore
from tests.sim.traffic import (
    BASE,
    CONFIG,
    HALF,
    READ,
    SIZE,
    SLOW,
    TARGET,
    WIDE,
    WRITE,
    attached,
    begin,
    digest,
    make,
    of,
    run,
    written,
)


@pytest.mark.parametrize("config", [CONFIG, WIDE], ids=["2 ports of 8", "1 port of 64"])
@pytest.mark.parametrize("slow", [0, SLOW])
@pytest.mark.parametrize(
    "model",
    [
        MemoryModel(),
        MemoryModel(latency=1, outstanding=1),
        MemoryModel(latency=20, jitter=30, stall=0.5),
        MemoryModel(latency=5, stall=0.2, shared=True, outstanding=3),
    ],
    ids=["plain", "one at a time", "stalling", "shared"],
)
def test_every_byte_arrives_whatever_the_memory_does(seed: int, config: CoreConfig, model: MemoryModel, slow: int):
    words = config.beat_bytes // 8
    bursts, beats = 16, 8
    with make(config, seed=seed % 1000) as sim:
        memory = attached(sim)
        sim.configure(model, seed % 1000)
        before = memory.copy()
        run(sim, *([READ | WRITE | slow, READ][: config.ports]), bursts=bursts, beats=beats)
        size = bursts * beats * config.beat_bytes
        expected = before.copy()
        expected[TARGET - BASE :][:size] = written(bursts * beats, words)
        np.testing.assert_array_equal(memory, expected)
        for port in range(config.ports):
            assert sim.get(f"beats_read_{port}") == digest(before[:size], words)
        assert sim.get("error") == 0
        assert sim.stray == []
        sim.check()
        log = of(sim, is_write=True)
        assert log["strobes"].tolist() == [beats * config.beat_bytes] * bursts
        assert log["address"].tolist() == [TARGET + number * beats * config.beat_bytes for number in range(bursts)]
        assert set(log["beats"].tolist()) == {beats}
        assert len(sim.bursts()) == bursts * (config.ports + 1)


@pytest.mark.parametrize("latency", [1, 2, 37, 400])
def test_the_latency_is_exact(sim: SimulatedCore, memory: NDArray, latency: int):
    sim.configure(MemoryModel(latency=latency))
    run(sim, READ | WRITE, bursts=1)
    (read,) = of(sim, is_write=False)
    (write,) = of(sim, is_write=True)
    assert read["first"] - read["asked"] == latency
    assert write["answered"] - write["last"] == latency
    assert read["last"] == read["answered"] == read["first"] + 15
    assert write["first"] == write["asked"]


def test_jitter_adds_up_to_so_many_clocks_and_keeps_the_order(sim: SimulatedCore, memory: NDArray):
    sim.configure(MemoryModel(latency=50, jitter=20, outstanding=1))
    run(sim, READ, bursts=64, beats=1)
    waited = of(sim, is_write=False)
    waited = waited["first"] - waited["asked"]
    assert 50 <= waited.min() < 55
    assert 65 < waited.max() <= 70
    sim.configure(MemoryModel(latency=50, jitter=200))
    sim.clear_log()
    run(sim, READ | WRITE, bursts=64, beats=1)
    for is_write in (False, True):
        assert np.all(np.diff(of(sim, is_write=is_write)["answered"]) > 0)


def test_beats_follow_each_other_without_a_gap(sim: SimulatedCore, memory: NDArray):
    sim.configure(MemoryModel(latency=90))
    run(sim, READ | WRITE, READ | WRITE, bursts=60, beats=2)
    for port in (0, 1):
        for is_write in (False, True):
            log = of(sim, is_write=is_write, port=port)
            assert log["first"][1:].tolist() == (log["last"][:-1] + 1).tolist()


@pytest.mark.parametrize("outstanding", [1, 2, 5])
def test_no_more_bursts_are_accepted_than_may_be_outstanding(sim: SimulatedCore, memory: NDArray, outstanding: int):
    sim.configure(MemoryModel(outstanding=outstanding))
    run(sim, READ | WRITE, bursts=12)
    for is_write in (False, True):
        log = of(sim, is_write=is_write)
        # The next address is taken in the clock after the one that makes room.
        assert log["asked"][outstanding:].tolist() == (log["answered"][:-outstanding] + 1).tolist()
        assert np.all(np.diff(log["asked"][:outstanding]) == 1)


def test_a_shared_port_has_one_beat_a_clock_and_takes_turns(sim: SimulatedCore, memory: NDArray):
    sim.configure([MemoryModel(latency=10, shared=True), MemoryModel(latency=10)])
    begin(sim, READ | WRITE, READ | WRITE, bursts=64, beats=1)
    sim.wait(1000)
    clocks = sim.bursts()["first"][sim.bursts()["port"] == 0]
    assert len(set(clocks.tolist())) == 128
    # Once both want beats, each has every second clock.
    reads = of(sim, is_write=False)["first"]
    both = of(sim, is_write=True)["first"]
    both = both[both > reads[0]]
    assert len(both) > 40
    assert set(np.diff(both)) == {2}
    # The other port is not shared, and has both in one clock.
    free = sim.bursts()["first"][sim.bursts()["port"] == 1]
    assert len(set(free.tolist())) < 80


def test_a_write_is_seen_with_its_response_and_not_before(sim: SimulatedCore, memory: NDArray):
    before = memory.copy()
    sim.configure(MemoryModel(latency=100))
    begin(sim, READ | WRITE, bursts=1, writes=BASE)
    while sim.bursts()["answered"].max(initial=-1) < 0 or np.array_equal(memory, before):
        (write,) = of(sim, is_write=True) if len(of(sim, is_write=True)) else [None]
        if write is not None and write["last"] >= 0:
            changed = not np.array_equal(memory, before)
            assert changed == (sim.now > write["last"] + 100)
        sim.clock()
    sim.finish(1000)
    # The read was answered sooner, with what was there.
    assert sim.get("beats_read_0") == digest(before[:128], 1)
    np.testing.assert_array_equal(memory[:128], written(16, 1))
    run(sim, READ, bursts=1)
    assert sim.get("beats_read_0") == digest(memory[:128], 1)


def test_only_bytes_with_a_strobe_are_written(sim: SimulatedCore, memory: NDArray):
    before = memory.copy()
    run(sim, WRITE | HALF, bursts=2, beats=4)
    expected = before[TARGET - BASE :][:64].copy()
    expected[::2] = written(8, 1)[::2]
    np.testing.assert_array_equal(memory[TARGET - BASE :][:64], expected)
    assert of(sim, is_write=True)["strobes"].tolist() == [16, 16]


def test_a_burst_that_fails_is_answered_with_an_error_and_changes_nothing(sim: SimulatedCore, memory: NDArray):
    before = memory.copy()
    sim.fail(0, "write", TARGET + 128 + 127)
    sim.fail(0, "read", BASE + 256)
    run(sim, READ | WRITE, bursts=4)
    assert sim.get("error") == 0b1010
    expected = before.copy()
    expected[TARGET - BASE :][:512] = written(64, 1)
    expected[TARGET - BASE + 128 :][:128] = before[TARGET - BASE + 128 :][:128]
    np.testing.assert_array_equal(memory, expected)
    # A read that failed has no data of the memory.
    poisoned = before[:512].copy()
    poisoned[256:384] = 0xA5
    assert sim.get("beats_read_0") == digest(poisoned, 1)
    run(sim, 0, READ | WRITE, bursts=4)
    assert sim.get("error") == 0
    sim.heal()
    run(sim, READ | WRITE, bursts=4)
    assert sim.get("error") == 0
    sim.check()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_a_mute_port_answers_once_it_is_healed(sim: SimulatedCore, memory: NDArray, direction: Any):
    sim.mute(0, direction, after=3)
    begin(sim, READ | WRITE)
    with pytest.raises(TimeoutError, match="no interrupt within 5000 clocks"):
        sim.wait(5000)
    log = of(sim, is_write=direction == "write")
    assert np.count_nonzero(log["answered"] >= 0) == 3
    assert np.all(log["last"][3:] >= 0) == (direction == "write")
    assert np.all(of(sim, is_write=direction != "write")["answered"] >= 0)
    sim.heal()
    assert sim.finish(1000) > 0
    assert np.all(sim.bursts()["answered"] >= 0)
    assert sim.get("beats_read_0") == digest(memory[:1024], 1)
    sim.check()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_a_port_that_accepts_no_addresses_does_so_once_it_is_healed(
    sim: SimulatedCore, memory: NDArray, direction: Any
):
    sim.mute(0, direction, after=3, addresses=True)
    begin(sim, READ | WRITE)
    with pytest.raises(TimeoutError):
        sim.wait(2000)
    assert np.all(sim.bursts()["answered"] >= 0)
    assert len(of(sim, is_write=direction == "write")) == 3
    sim.heal()
    sim.finish(1000)
    assert len(sim.bursts()) == 16
    sim.check()


def test_bursts_beside_the_memory_are_refused_and_recorded(sim: SimulatedCore, memory: NDArray):
    partly = np.zeros(512, np.uint8)
    sim.attach(0x20_0040, partly)
    run(sim, READ | WRITE, bursts=2, reads=BASE + SIZE - 128, writes=0x20_0000)
    assert sim.get("error") == 0b1111
    assert sorted(sim.stray) == [(0, False, BASE + SIZE), (0, True, 0x20_0000)]
    np.testing.assert_array_equal(partly[:64], np.zeros(64))
    np.testing.assert_array_equal(partly[64:192], written(32, 1)[128:])
    sim.check()


def test_regions_that_touch_share_bursts(sim: SimulatedCore):
    parts = [np.arange(at, at + 24, dtype=np.uint8) for at in (0, 24, 48, 72, 96)]
    for place, part in enumerate(parts):
        sim.attach(BASE + 24 * place, part)
    run(sim, READ, bursts=1, beats=15)
    assert sim.get("beats_read_0") == digest(np.arange(120, dtype=np.uint8), 1)
    run(sim, WRITE, bursts=1, beats=15, writes=BASE)
    np.testing.assert_array_equal(np.concatenate(parts), written(15, 1))
    assert sim.stray == []


@pytest.mark.parametrize(
    ("base", "data", "message"),
    [
        (BASE + SIZE - 1, np.zeros(8, np.uint8), "overlaps that of 32768 bytes at 0x100000"),
        (BASE - 7, np.zeros(8, np.uint8), "overlaps"),
        (0, np.zeros(8, np.uint16), "array of uint8"),
        (0, np.zeros((8, 8), np.uint8), "one-dimensional"),
        (0, np.zeros(8, np.uint8)[::2], "contiguous"),
        (0, np.frombuffer(bytes(8), np.uint8), "writeable"),
        (0, np.zeros(0, np.uint8), "memory of 0 bytes"),
        (-8, np.zeros(8, np.uint8), "not possible"),
        ((1 << 64) - 7, np.zeros(8, np.uint8), "not possible"),
    ],
)
def test_memory_that_cannot_be_used_is_refused(sim: SimulatedCore, memory: NDArray, base: int, data: Any, message: str):
    with pytest.raises(ValueError, match=message):
        sim.attach(base, data)


def test_memory_is_taken_away_when_nothing_is_under_way(sim: SimulatedCore, memory: NDArray):
    begin(sim, READ)
    sim.clock(20)
    with pytest.raises(RuntimeError, match="bursts are under way: finish or reset first"):
        sim.detach()
    sim.finish(1000)
    sim.detach()
    attached(sim)
    run(sim, READ)
    assert sim.stray == []


def test_after_a_reset_nothing_is_left_of_what_was_under_way(sim: SimulatedCore, memory: NDArray):
    before = memory.copy()
    begin(sim, READ | WRITE)
    sim.clock(60)
    assert of(sim, is_write=True)["last"].max() > 0
    sim.reset()
    sim.clock(500)
    assert np.all(sim.bursts()["answered"] == -1)
    np.testing.assert_array_equal(memory, before)
    sim.detach()
    sim.attach(BASE, memory)
    run(sim, READ | WRITE)
    np.testing.assert_array_equal(memory[TARGET - BASE :][:1024], written(128, 1))
    sim.check()


def test_the_log_forgets_bursts_that_are_under_way(sim: SimulatedCore, memory: NDArray):
    begin(sim, READ | WRITE)
    sim.clock(60)
    assert len(sim.bursts()) == 16
    sim.clear_log()
    sim.finish(1000)
    assert len(sim.bursts()) == 0
    run(sim, READ)
    assert len(sim.bursts()) == 8


def test_a_run_can_be_had_again_from_its_seed():
    logs = []
    for seed in (1, 1, 2):
        with make() as sim:
            attached(sim)
            sim.configure(MemoryModel(jitter=10, stall=0.3), seed)
            run(sim, READ | WRITE, READ | WRITE)
            logs.append(sim.bursts().tobytes())
    assert logs[0] == logs[1] != logs[2]


def test_a_wait_stops_at_its_limit_and_counts_its_clocks(sim: SimulatedCore, memory: NDArray):
    begin(sim, READ)
    before = sim.now
    with pytest.raises(TimeoutError, match="no interrupt within 50 clocks"):
        sim.wait(50)
    assert (sim.now, sim.interrupt) == (before + 50, False)
    waited = sim.wait(1000)
    assert (sim.now, sim.interrupt) == (before + 50 + waited, True)
    assert sim.wait(0) == 0
    assert sim.finish(0) == 0
    # Both the interrupt and done were acknowledged.
    assert (sim.interrupt, sim.get("control")) == (False, 0b1100)
    before = sim.now
    sim.clock(250_000)
    assert sim.now == before + 250_000


def test_a_long_run_can_be_stopped(sim: SimulatedCore):
    press = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    started = time.monotonic()
    press.start()
    with pytest.raises(KeyboardInterrupt):
        sim.wait(10**12)
    press.join()
    assert time.monotonic() - started < 20


def test_registers_are_words_by_their_offset_and_numbers_by_their_name(sim: SimulatedCore):
    sim.set("batch_address", 0x1234_5678_9ABC_DEF0)
    assert sim.get("batch_address") == 0x1234_5678_9ABC_DEF0
    assert (sim.read_register(0x10), sim.read_register(0x14)) == (0x9ABC_DEF0, 0x1234_5678)
    sim.write_register(0x10, 0x1122_3344, strobes=0b0101)
    assert sim.read_register(0x10) == 0x9A22_DE44
    for refused in (lambda: sim.set("count", 1 << 32), lambda: sim.write_register(0x10, -1)):
        with pytest.raises(ValueError, match=r"does not fit|is no word"):
            refused()
    with pytest.raises(ValueError, match="identity is only read: `get` says what it holds"):
        sim.set("identity", 1)
    for offset in (2, 4096, -4):
        with pytest.raises(ValueError, match="there is no register at"):
            sim.read_register(offset)
    with pytest.raises(RuntimeError, match="a write of the register at 0xff0 had the response 2"):
        sim.write_register(0xFF0, 0)
    with pytest.raises(RuntimeError, match="a read of the register at 0xff0 had the response 2"):
        sim.read_register(0xFF0)
    with pytest.raises(RuntimeError, match="a write of the register at 0xff4 had no response"):
        sim.write_register(0xFF4, 0)


def test_ports_directions_and_models_that_do_not_exist_are_refused(sim: SimulatedCore):
    with pytest.raises(ValueError, match="there is no port 2: use 0 to 1"):
        sim.fail(2, "read", 0)
    wrong: Any = "writes"
    with pytest.raises(ValueError, match="'writes' is no direction: use 'read' or 'write'"):
        sim.mute(0, wrong)
    with pytest.raises(ValueError, match="after = -1 bursts is not possible"):
        sim.mute(0, "read", -1)
    with pytest.raises(ValueError, match="-1 clocks cannot be run"):
        sim.clock(-1)
    with pytest.raises(ValueError, match="3 models were given: the core has 2 ports"):
        sim.configure([MemoryModel()] * 3)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"latency": 0}, "latency = 0 is not supported: use 1 to"),
        ({"outstanding": 0}, "outstanding = 0"),
        ({"jitter": -1}, "jitter = -1"),
        ({"stall": 1}, r"stall = 1 is not supported: use a probability from 0 to 0\.99"),
    )
    for about, message in refused:
        with pytest.raises(ValueError, match=message):
            MemoryModel(**about)


def test_waves_show_every_clock_and_change_nothing(sim: SimulatedCore, memory: NDArray, tmp_path: Path):
    path = tmp_path / "core.vcd"
    with make(waves=path) as traced:
        attached(traced)
        for each in (sim, traced):
            run(each, READ | WRITE)
        assert traced.bursts().tobytes() == sim.bursts().tobytes()
        clocks = traced.now
    text = path.read_text()
    assert "m_axi_port_0_arvalid" in text
    assert f"#{2 * clocks - 1}\n" in text
    assert text.count("\n#") == 2 * clocks
    with pytest.raises(OSError, match="cannot be written: name a file in a folder that exists"):
        make(waves=tmp_path / "nowhere" / "core.vcd")
