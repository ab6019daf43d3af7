"""Batches, and memory as a core without faults leaves it: for the tests of the reference and of what judges a core."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relay_eps.fpga.batch import Descriptor, encode
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.interface.descriptors import RECORD
from tests.hw.core.batches import Batch, random_batch
from tests.hw.core.reference import Expected, Fields

CONFIG = CoreConfig(lanes=4, ports=2, beat_bytes=16, build_id=0x1122_3344_5566_7788)
Memory = NDArray[np.uint8]


def with_records(batch: Batch, memory: Memory, records: Sequence[Fields]) -> Memory:
    """A copy of memory in which these records were written, each after one clock."""
    memory = memory.copy()
    for number, fields in enumerate(records):
        at = batch.completion_address - batch.base + RECORD.size * number
        row = 0
        for place in RECORD:
            names = [(f"{place.name}.{bits.name}", bits.low) for bits in place.fields] or [(place.name, 0)]
            for name, low in names:
                value = fields[name]
                row |= (1 if value is None else value) << low + 8 * place.offset
        memory[at : at + RECORD.size] = np.frombuffer(row.to_bytes(RECORD.size, "little"), np.uint8)
    return memory


def known(fields: Fields) -> Fields:
    """Without what may be anything."""
    return {**fields, "status.nonfinite": fields["status.nonfinite"] or 0, "clocks": fields["clocks"] or 1}


def finished(batch: Batch, expected: Expected) -> Memory:
    """Memory as it must be in the end."""
    return with_records(batch, expected.memory.values.view(np.uint8), [known(fields) for fields in expected.records])


def any_batch(rng: np.random.Generator) -> Batch:
    return random_batch(rng, longest=600, address_bits=int(rng.integers(32, 65)), ragged=float(rng.choice([0, 0.4])))


def one(rng: np.random.Generator, descriptor: Descriptor, memory: Memory) -> Batch:
    """A batch of one descriptor; its sections start at 0x1000, which is where ``memory`` lies."""
    image = np.concatenate([memory, rng.integers(256, size=4096 - len(memory), dtype=np.uint8)])
    image[2048:2176] = encode([descriptor])
    image[3072:3136] = 0
    return Batch(image, 0x1000, (descriptor,), 0x1000 + 2048, 0x1000 + 3072, 1)
