"""One number for the whole state of a run, so that two runs can be compared without keeping either. numpy only."""

from __future__ import annotations

import hashlib

from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.layout import Section


def state_hash(server: EagerParamServer, *, seed: int, step: int) -> str:
    """sha256, in hex, of every tensor's p, m and v, its count of applies, and (seed, step).

    Tensors are taken by name, so that the hash does not depend on how they are grouped into EPS layers. Equal hashes
    mean equal bits, but for which NaN a NaN is. Reads one layer's sections at a time, and waits for outstanding calls.
    """
    digests = {}
    for layer in server.layers():
        layout = server.layout(layer)
        sections = (Section.P, Section.M, Section.V) if layout.trainable else (Section.P,)
        stored = [server.read(layer, section).result() for section in sections]
        for slot in layout.slots:
            digest = hashlib.sha256(f"{slot.spec.shape} t={server.applies(layer)}".encode())
            for values in stored:
                digest.update(values[slot.start : slot.stop].data)
            digests[slot.spec.name] = digest.hexdigest()
    whole = hashlib.sha256(f"seed={seed} step={step}".encode())
    for name in sorted(digests):
        whole.update(f"\n{name} {digests[name]}".encode())
    return whole.hexdigest()
