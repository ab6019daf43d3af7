"""Checkpoints: folders that are complete or absent, whatever kills the process while they are written.

A checkpoint holds every EPS layer (weights, moments, count of applies), the model's buffers and a record. It is a
folder ``step-00000012`` of safetensors files, one a layer, and ``manifest.json``, which lists them with their SHA-256
sums. `save` writes a layer at a time and renames the finished folder into place; `load` verifies everything before it
changes anything. Tensors are found by their names in the model, so that the model may be cut into
EPS layers differently when it is loaded. Summed gradients and wire copies are not kept: the next step remakes them.
"""

from __future__ import annotations

from relay_eps.checkpoint.format import Checkpoint
from relay_eps.checkpoint.names import newest
from relay_eps.checkpoint.reader import inspect, load
from relay_eps.checkpoint.writer import save

__all__ = ["Checkpoint", "inspect", "load", "newest", "save"]
