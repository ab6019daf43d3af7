"""Batches that a core must refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from relay_eps.fpga.interface import Fault
from relay_eps_hw.interface.descriptors import ALIGNMENT, DESCRIPTOR, LONGEST, SCALARS, STREAMS
from relay_eps_hw.lane.beat import SIGNED
from tests.hw.core.batches import Batch, Error, Rng, Writer, random_batch


def bad_batches(rng: Rng, address_bits: int = 64) -> Iterator[tuple[str, Batch, Error]]:
    """For every check batches that fail it, in the middle of good descriptors; pairs show which check is the first."""
    top = (1 << address_bits) - ALIGNMENT
    for name, operation, changes, bits, fault, stream in _cases(rng):
        length = 2 * int(rng.integers(60, 300))
        writer = Writer(rng, [int(rng.integers(1, 200)), length], 8, address_bits, above=1)
        good = [writer.any_operation(writer.layers[0]) for _ in range(3)]
        # What is refused for an overlap with this one must find it in the pipeline.
        texts = ("fold_apply", operation, "fetch")
        before, bad, after = (writer.write(writer.layers[1], text, plain=True) for text in texts)
        assert bad is not None
        addresses = dict(bad.addresses)
        for place, (of, shift) in changes.get("addresses", {}).items():
            addresses[place] = top if of == "top" else addresses[of] + shift
        scalars = {**bad.scalars, **changes.get("scalars", {})}
        bad = replace(bad, length=bad.length + changes.get("longer", 0), addresses=addresses, scalars=scalars)
        bad = replace(bad, **{key: changes[key] for key in ("length", "g_format", "wire_format") if key in changes})
        last = [writer.any_operation(writer.layers[0]) for _ in range(2)]
        batch = writer.finish([*good, *filter(None, (before, bad, after)), *last])
        for offset, value in bits.items():
            batch.words(4)[offset // 4] |= np.uint32(value)
        address = batch.batch_address + 4 * DESCRIPTOR.size if stream == "descriptors" else addresses[stream]
        yield name, batch, Error(fault, stream, address, 4, bad.tag)
    batch = random_batch(rng, operations=4, longest=200, address_bits=address_bits)
    for fault, of_batch, of_records in (
        (Fault.ALIGNMENT, batch.batch_address + 32, batch.completion_address + 16),
        (Fault.ADDRESS, top, top),
    ):
        name = f"{fault.name.lower()} of"
        yield f"{name} the batch", replace(batch, batch_address=of_batch), Error(fault, "descriptors", of_batch)
        error = Error(fault, "records", of_records, is_recorded=False)
        yield f"{name} the records", replace(batch, completion_address=of_records), error
    error = Error(Fault.LENGTH, "descriptors", None, is_recorded=False)
    yield "too many descriptors", replace(batch, count=1 << 31), error


_Case = tuple[str, str, dict[str, Any], dict[int, int], Fault, str]


def _cases(rng: Rng) -> Iterator[_Case]:
    """Names, operations, changes of the descriptor, bits set in memory, and what is found."""
    any_one = ("fold", "apply", "fold_apply", "accumulate", "fetch", "copy:p:s", "fill:p", "identify")
    misaligned = {stream: {"addresses": {stream: (stream, int(rng.integers(1, 64)))}} for stream in STREAMS}
    beyond = {stream: {"addresses": {stream: ("top", 0)}} for stream in STREAMS}
    own = "descriptors"
    first, second, third = rng.choice(any_one[:6], 3).tolist()
    for bit in (4, 7, 9, 15, 18, 19, 22, 31):
        yield f"bit {bit} of the operation", "barrier", {}, {0: 1 << bit}, Fault.OPCODE, own
    yield "the next opcode", "identify", {}, {0: 9}, Fault.OPCODE, own
    yield "an opcode before a format", "barrier", {"g_format": 3}, {0: 1 << 31}, Fault.OPCODE, own
    for fmt in ("g_format", "wire_format"):
        yield f"{fmt} 3", str(rng.choice((*any_one, "barrier"))), {fmt: 3}, {}, Fault.FORMAT, own
    yield "a format before a length", first, {"g_format": 3, "length": 0}, {}, Fault.FORMAT, own
    for length in (0, LONGEST + 1, (1 << 32) - 1):
        yield f"length {length}", second, {"length": length}, {}, Fault.LENGTH, own
    yield "a length before an address", "fetch", {"length": 0, **misaligned["p"]}, {}, Fault.LENGTH, own
    for stream in STREAMS:
        yield f"{stream} misaligned", "fold_apply", misaligned[stream], {}, Fault.ALIGNMENT, stream
        yield f"{stream} beyond", "fold_apply", beyond[stream], {}, Fault.ADDRESS, stream
    both = {"addresses": {**beyond["m"]["addresses"], **misaligned["p"]["addresses"]}}
    yield "m beyond before p misaligned", "apply", both, {}, Fault.ADDRESS, "m"
    yield "an address before a reserved word", "fetch", misaligned["wire"], {0x38: 1}, Fault.ALIGNMENT, "wire"
    for offset in (0x38, 0x3C, 0x64, 0x7C, 4 * int(rng.integers(0x68 // 4, 0x7C // 4))):
        bits = {offset: 1 << int(rng.integers(32))}
        yield f"reserved word {offset:#x}", str(rng.choice((*any_one, "barrier"))), {}, bits, Fault.OPCODE, own
    wrong = (np.inf, np.nan, 1e-39, -0.0, -1e-39, -np.inf, -1.0)
    for number, name in enumerate(SCALARS):
        for value in (wrong[number % 6], wrong[6 if name not in SIGNED else (number + 3) % 6]):
            kind = str(rng.choice((*any_one, "barrier")))
            yield f"{name} {value}", kind, {"scalars": {name: value}}, {}, Fault.SCALAR, own
    yield "a reserved word before a scalar", third, {"scalars": {"b1": -1.0}}, {0x3C: 4}, Fault.OPCODE, own
    yield "a scalar before a reserved word", third, {"scalars": {"s": -1.0}}, {0x7C: 4}, Fault.SCALAR, own
    same = {"addresses": {"wire": ("p", 0)}}
    yield "a reserved word before an overlap", "fetch", same, {0x64: 8}, Fault.OPCODE, own
    for late, early in (("m", "g"), ("v", "m"), ("p", "v"), ("wire", "p"), ("wire", "m")):
        for shift in (0, ALIGNMENT):
            changes = {"addresses": {late: (early, shift)}}
            yield f"{late} on {early} + {shift}", "fold_apply", changes, {}, Fault.OVERLAP, late
    yield "p ends earlier than before", "fetch", {"longer": -32}, {}, Fault.OVERLAP, "p"
    later: dict[str, Any] = {"longer": -32, "addresses": {"p": ("p", ALIGNMENT)}}
    yield "p starts later than before", "copy:p:s", later, {}, Fault.OVERLAP, "p"
    for name in ("g", "wire"):
        yield f"a part of {name} is filled", f"fill:{name}", {"longer": -16}, {}, Fault.OVERLAP, "wire"
