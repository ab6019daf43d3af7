"""State in and out of a relay: weights under the model's own names, and whole checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from relay_eps import checkpoint
from relay_eps.checkpoint import Checkpoint
from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.formats import Format
from relay_eps.eps.layout import Section
from relay_eps.eps.memory import aligned_empty
from relay_eps.errors import CheckpointError, RelayError
from relay_eps.relay.layers import EpsLayer
from relay_eps.relay.link import from_numpy, to_numpy

if TYPE_CHECKING:
    from relay_eps.relay.engine import Relay


def state_dict(model: nn.Module, server: EagerParamServer, layers: Sequence[EpsLayer]) -> dict[str, torch.Tensor]:
    """Master weights and persistent buffers by the model's names; a tied tensor appears under each of its names."""
    weights: dict[int, torch.Tensor] = {}
    for eps in layers:
        flat = torch.from_numpy(server.read(eps.name, Section.P).result())
        for slot, parameter in zip(eps.layout.slots, eps.parameters, strict=True):
            weights[id(parameter)] = flat[slot.start : slot.stop].view(slot.spec.shape)
    values = {name: weights[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    values.update({name: tensor.detach().cpu().clone() for name, tensor in persistent_buffers(model)})
    return values


def check_state_dict(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    """Raise RelayError where names or shapes differ from the model's."""
    expected = {**dict(model.named_parameters(remove_duplicate=False)), **dict(persistent_buffers(model))}
    problems = [f"{name} is missing" for name in expected if name not in values]
    problems += [f"{name} is not in the model" for name in values if name not in expected]
    problems += [
        f"{name} has shape {tuple(values[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in values and values[name].shape != tensor.shape
    ]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise RelayError(f"the weights do not fit the model: {'; '.join(problems[:4])}{more}")


def load_state_dict(
    model: nn.Module, server: EagerParamServer, layers: Sequence[EpsLayer], values: dict[str, torch.Tensor]
) -> None:
    """Replace weights and buffers by values that `check_state_dict` has passed."""
    buffers = dict(persistent_buffers(model))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    by_parameter = {id(p): values[name] for name, p in parameters.items()}
    for eps in layers:
        flat = aligned_empty(eps.layout.nbytes(Format.FP32)).view(np.float32)
        for slot, parameter in zip(eps.layout.slots, eps.parameters, strict=True):
            target = torch.from_numpy(flat[slot.start : slot.stop]).view(slot.spec.shape)
            target.copy_(by_parameter[id(parameter)].detach())
        server.write(eps.name, Section.P, flat).result()
    with torch.no_grad():
        for name, buffer in buffers.items():
            buffer.copy_(values[name])


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers that a state dict holds, by name; those of a module in several places under each of its names."""
    for path, module in model.named_modules(remove_duplicate=False):
        for name, tensor in module._buffers.items():
            if tensor is not None and name not in module._non_persistent_buffers_set:
                yield (f"{path}.{name}" if path else name), tensor


def save(relay: Relay, folder: Path, extra: dict[str, Any]) -> Path:
    """Write a checkpoint of everything that the next step depends on."""
    arrays, sixteen = {}, []
    for name, tensor in persistent_buffers(relay.model):
        if tensor.dtype == torch.bfloat16:
            sixteen.append(name)
        arrays[name] = np.array(to_numpy(tensor.detach().cpu().contiguous()))
    record = {
        "seed": relay.seed,
        "steps_skipped": relay.steps_skipped,
        "mode": relay.mode,
        "groups": [_plain(group) for group in relay.optimizer.param_groups],
        "loss_scale": None if relay.loss_scale is None else asdict(relay.loss_scale),
        "bf16_buffers": sixteen,
        "extra": extra,
    }
    return checkpoint.save(folder, relay.server, Checkpoint(relay.steps_done, record, arrays))


def load(relay: Relay, folder: Path, begin: Callable[[], None]) -> dict[str, Any]:
    """Load a checkpoint into a relay of the same model; returns the caller's extra record.

    ``begin`` is called when everything has been verified and nothing has been changed yet.
    """

    def accept(checked: Checkpoint) -> None:
        _check(relay, checked)
        begin()

    found = checkpoint.load(folder, relay.server, accept)
    record = found.record
    with torch.no_grad():
        for name, buffer in persistent_buffers(relay.model):
            value = found.arrays[name]
            source = from_numpy(value) if name in record["bf16_buffers"] else torch.from_numpy(value)
            buffer.copy_(source.view(buffer.shape))
    for group, saved in zip(relay.optimizer.param_groups, record["groups"], strict=True):
        group.update(saved)
    if relay.loss_scale is not None and record["loss_scale"] is not None:
        for name, value in record["loss_scale"].items():
            setattr(relay.loss_scale, name, value)
    relay.steps_done = found.step
    relay.steps_skipped = record["steps_skipped"]
    relay.use_seed(record["seed"])
    return dict(record["extra"])


def _check(relay: Relay, found: Checkpoint) -> None:
    record, arrays = found.record, found.arrays
    if len(record.get("groups", ())) != len(relay.optimizer.param_groups):
        raise CheckpointError(
            f"the checkpoint has {len(record.get('groups', ()))} parameter groups, this relay "
            f"{len(relay.optimizer.param_groups)}"
        )
    buffers = dict(persistent_buffers(relay.model))
    differing = sorted(set(buffers) ^ set(arrays))
    differing += [name for name in buffers if name in arrays and tuple(buffers[name].shape) != arrays[name].shape]
    if differing:
        raise CheckpointError(f"the checkpoint is of another model: its buffers differ in {', '.join(differing[:4])}")


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """A parameter group without its tensors; a tensor-valued setting as a number."""
    return {
        key: value.item() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }
