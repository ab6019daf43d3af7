"""The reference: its arithmetic is the golden model's, and what it calls unknown is only what cannot be known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from relay_eps.eps import golden
from relay_eps.eps.formats import widen
from relay_eps.eps.hyper import FoldScalars
from relay_eps.fpga.batch import FORMATS, Descriptor, encode
from relay_eps.fpga.interface import SOURCES, Opcode, State
from relay_eps_hw.interface import descriptors as layouts
from tests.hw.core.batches import random_batch
from tests.hw.core.finished import CONFIG, one
from tests.hw.core.reference import Kind, matches, record, run


def test_unknown_is_only_what_counters_give():
    for seed in range(40):
        batch = random_batch(np.random.default_rng(seed), longest=300, ragged=seed % 2 / 2)
        if not any(descriptor.opcode is Opcode.IDENTIFY for descriptor in batch.descriptors):
            assert Kind.UNKNOWN not in run(batch, CONFIG).memory.kinds


@pytest.mark.parametrize("g_format", range(3))
@pytest.mark.parametrize("first", [False, True])
def test_a_fold_is_the_golden_models(rng: np.random.Generator, g_format: int, first: bool):
    m, v = np.abs(rng.standard_normal((2, 19)).astype(np.float32))
    g = rng.standard_normal(19).astype(np.float32)
    g = (g.view(np.uint32) >> 16).astype(np.uint16) if g_format == 1 else g.astype(FORMATS[g_format].carrier)
    scalars = {"scale": -0.5, "b1": 0.875, "c1": 0.125, "b2": 0.75, "c2": 0.25}
    addresses = {"g": 0x1000, "m": 0x1080, "v": 0x1100}
    memory = np.zeros(512, np.uint8)
    for at, array in ((0, g), (128, m), (256, v)):
        memory[at : at + array.nbytes] = array.view(np.uint8)
    descriptor = Descriptor(Opcode.FOLD, 19, 7, first, g_format, addresses=addresses, scalars=scalars)
    expected = run(one(rng, descriptor, memory), CONFIG)
    wanted = golden.fold(m, v, g, FoldScalars(0.875, 0.125, 0.75, 0.25), scale=-0.5, first=first)
    after = expected.memory.values.view(np.uint8)
    assert np.array_equal(after[128:204].view(np.float32), wanted[0])
    assert np.array_equal(after[256:332].view(np.float32), wanted[1])
    counts = {"m_acknowledged": 19, "v_acknowledged": 19}
    assert expected.records == (record(0, State.DONE, 7, wrote=1, **counts),)
    assert np.isfinite(widen(g)).all()


def test_a_copy_of_any_nan_is_any_nan(rng: np.random.Generator):
    nans = np.array([0x7FC0_0000, 0x3F80_0000, 0xFFC0_0001], np.uint32)
    batch = one(
        rng, Descriptor(Opcode.ACCUMULATE, 3, first=True, addresses={"g": 0x1000, "m": 0x1040}), np.zeros(512, np.uint8)
    )
    copy = Descriptor(Opcode.COPY, 3, addresses={"p": 0x1040, "wire": 0x1080})
    memory = batch.memory.copy()
    memory[:12] = nans.view(np.uint8)
    memory[2048:2304] = encode([batch.descriptors[0], copy]).reshape(-1)
    expected = run(replace(batch, memory=memory, descriptors=(batch.descriptors[0], copy), count=2), CONFIG)
    assert expected.records[0]["status.nonfinite"] == 1
    assert expected.records[1]["status.nonfinite"] == 0
    for start in (0x20, 0x40):
        part = expected.memory.part(start, 6)
        assert part.kinds.tolist() == [Kind.NAN_FP32] * 2 + [Kind.EXACT] * 2 + [Kind.NAN_FP32] * 2
        other = np.array([0xFFFF_FFFF, 0x3F80_0000, 0x7F80_0001], np.uint32)
        assert matches(other.view(np.uint16), part).all()
        other[1] += 1
        assert matches(other.view(np.uint16), part).tolist() == [True, True, False, True, True, True]
    # The gradient itself was there before: its bits are known.
    assert not expected.memory.kinds[:6].any()


def test_an_identify_is_the_constant_registers(rng: np.random.Generator):
    descriptor = Descriptor(Opcode.IDENTIFY, 64, addresses={"wire": 0x1000})
    part = run(one(rng, descriptor, np.zeros(256, np.uint8)), CONFIG).memory.part(0, 128)
    words = part.values.view(np.uint32)
    assert words[0].tobytes() == b"REPS"
    assert words[1:6].tolist() == [1, 0x5566_7788, 0x1122_3344, 4 | 2 << 8 | 7 << 12 | 7 << 15 | 16 << 18, 16 | 64 << 9]
    counters = {*range(16, 40)}
    assert {at for at in range(64) if part.kinds[2 * at] == Kind.UNKNOWN} == counters
    assert not words[[*range(6, 16), *range(40, 64)]].any()


def test_the_host_has_the_same_names_for_what_meets_a_fault():
    assert SOURCES == layouts.SOURCES
