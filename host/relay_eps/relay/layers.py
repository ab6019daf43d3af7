"""What the relay executes: the user's layers in order, and the EPS layers that each of them is made of.

A *relay layer* is what the device runs at a time. It is a list of *EPS layers*: one for each parameter group in it, one
for what is frozen, and one of its own for every tensor that several relay layers use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn

from relay_eps.eps.layout import LayerLayout, TensorSpec
from relay_eps.errors import RelayError


@dataclass(frozen=True)
class RelayLayer:
    """One layer as the user names it.

    ``call`` is a module or a function. It gets the value carried from the layer below (for the first layer, the
    mini-batch's inputs) as its one argument, as in ``nn.Sequential``; with ``unpack`` a tuple or list is passed as
    positional arguments and a dict as keyword arguments. What it returns is carried to the next layer; tensors may sit
    in tuples, lists and dicts, among None and plain values.

    ``side`` names the side inputs that it takes as keyword arguments. A layer with ``provides`` returns
    ``(carried, {name: value, ...})`` and so makes side inputs for the layers above it.

    ``modules`` and ``parameters`` say what belongs to a function, or to a module that uses weights of others; a module
    brings its own. A name is needed for functions only.
    """

    call: Callable[..., Any]
    modules: Sequence[nn.Module] = ()
    parameters: Sequence[torch.Tensor] = ()
    name: str | None = None
    side: Sequence[str] = ()
    provides: Sequence[str] = ()
    unpack: bool = False


@dataclass(frozen=True, eq=False)
class EpsLayer:
    """An EPS layer as the relay sees it: its layout, the model's parameters in the layout's order, and who uses it."""

    layout: LayerLayout
    parameters: tuple[nn.Parameter, ...]
    #: Index of the optimizer's parameter group; None where it is frozen.
    group: int | None
    #: Indices of the relay layers that use it, ascending.
    users: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def trainable(self) -> bool:
        return self.layout.trainable

    @property
    def tied(self) -> bool:
        return len(self.users) > 1


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """A relay layer, ready to run."""

    index: int
    name: str
    layer: RelayLayer
    modules: tuple[nn.Module, ...]
    eps: tuple[EpsLayer, ...]

    @cached_property
    def own(self) -> tuple[EpsLayer, ...]:
        """The trainable EPS layers that only this relay layer uses."""
        return tuple(e for e in self.eps if e.trainable and not e.tied)

    @cached_property
    def tied(self) -> tuple[EpsLayer, ...]:
        """The trainable EPS layers that it shares."""
        return tuple(e for e in self.eps if e.trainable and e.tied)

    @cached_property
    def trained(self) -> tuple[nn.Parameter, ...]:
        """Its trainable parameters: those of ``own``, then those of ``tied``."""
        return tuple(p for e in (*self.own, *self.tied) for p in e.parameters)

    def run(self, carried: Any, side: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Call the layer: the value to carry on, and the side inputs that it made."""
        args, kwargs = self._arguments(carried)
        for name in self.layer.side:
            if name not in side:
                raise RelayError(f"layer {self.name!r} takes the side input {name!r}, which was not given or made yet")
            kwargs[name] = side[name]
        out = self.layer.call(*args, **kwargs)
        return (out, {}) if not self.layer.provides else self._provided(out)

    def _arguments(self, carried: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self.layer.unpack:
            return (carried,), {}
        if isinstance(carried, dict):
            return (), dict(carried)
        if isinstance(carried, (tuple, list)):
            return tuple(carried), {}
        raise RelayError(f"layer {self.name!r} unpacks a tuple, list or dict, but got {type(carried).__name__}")

    def _provided(self, out: Any) -> tuple[Any, dict[str, Any]]:
        names = tuple(self.layer.provides)
        if not (isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict) and set(out[1]) == set(names)):
            raise RelayError(
                f"layer {self.name!r} provides {', '.join(names)}: it must return (carried, {{name: value}})"
            )
        return out[0], out[1]


def plan_layers(
    model: nn.Module, layers: Sequence[nn.Module | str | RelayLayer] | None, groups: Sequence[Iterable[nn.Parameter]]
) -> tuple[LayerPlan, ...]:
    """The relay layers of ``model``, bottom first, with every parameter of the model in exactly one EPS layer.

    ``groups`` are the optimizer's parameter groups. Raises RelayError where the layers cannot be found, where a
    parameter of the model is in no layer or cannot be kept as fp32, where a trainable one is in no group, and where
    nothing is trainable.
    """
    named = [_resolve(model, entry, index) for index, entry in enumerate(_entries(model, layers))]
    if not named:
        raise RelayError("the model has no layers: give them as layers=[...]")
    _check_kinds(model)
    names = {id(p): n for n, p in model.named_parameters()}
    group_of = {id(p): g for g, group in enumerate(groups) for p in group}
    users = _users(named, names)
    _check_complete(model, users, group_of)
    eps = _eps_layers(named, names, users, group_of)
    return tuple(
        LayerPlan(index, name, layer, _modules(layer), tuple(e for e in eps if index in e.users))
        for index, (name, layer) in enumerate(named)
    )


def eps_layers(plans: Sequence[LayerPlan]) -> tuple[EpsLayer, ...]:
    """Every EPS layer once, in the order of its lowest user."""
    return tuple(e for plan in plans for e in plan.eps if e.users[0] == plan.index)


def _check_kinds(model: nn.Module) -> None:
    for name, p in model.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise RelayError(f"{name} has no shape yet: run one forward of the model first")
        if p.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise RelayError(
                f"{name} is {p.dtype}, and the server keeps fp32 weights: convert it with .float(), or make what is "
                "not trained a buffer"
            )


def _entries(
    model: nn.Module, layers: Sequence[nn.Module | str | RelayLayer] | None
) -> Sequence[nn.Module | str | RelayLayer]:
    if layers is not None:
        return layers
    if hasattr(model, "relay_layers"):
        return list(cast(Callable[[], Any], model.relay_layers)())
    if isinstance(model, nn.Sequential):
        return list(model)
    raise RelayError(
        f"the layers of {type(model).__name__} are not known: pass layers=[...], a list in forward order of its "
        "submodules, their names, or RelayLayer(function, modules=[...], name=...), or give the model a method "
        "relay_layers() that returns such a list"
    )


def _resolve(model: nn.Module, entry: nn.Module | str | RelayLayer, index: int) -> tuple[str, RelayLayer]:
    if isinstance(entry, str):
        try:
            entry = model.get_submodule(entry)
        except AttributeError:
            raise RelayError(f"the model has no submodule named {entry!r}") from None
    if isinstance(entry, nn.Module):
        entry = RelayLayer(entry)
    if not isinstance(entry, RelayLayer):
        raise RelayError(f"layer {index} is a {type(entry).__name__}: give a module, its name, or a RelayLayer")
    if entry.name is not None:
        return entry.name, entry
    if isinstance(entry.call, nn.Module):
        for name, module in model.named_modules():
            if module is entry.call:
                return name or f"layer{index}", entry
    return f"layer{index}", entry


def _modules(layer: RelayLayer) -> tuple[nn.Module, ...]:
    own = (layer.call,) if isinstance(layer.call, nn.Module) else ()
    return (*own, *layer.modules)


def _parameters(layer: RelayLayer) -> list[nn.Parameter]:
    found = {id(p): p for module in _modules(layer) for p in module.parameters()}
    # torch annotates a module's weight as Tensor; one that is no parameter of the model is refused by its users' check.
    found.update({id(p): cast(nn.Parameter, p) for p in layer.parameters})
    return list(found.values())


def _users(named: Sequence[tuple[str, RelayLayer]], names: dict[int, str]) -> dict[int, list[int]]:
    users: dict[int, list[int]] = {}
    for index, (name, layer) in enumerate(named):
        for p in _parameters(layer):
            if id(p) not in names:
                raise RelayError(f"layer {name!r} has a parameter of shape {tuple(p.shape)} that is not in the model")
            users.setdefault(id(p), []).append(index)
    return users


def _check_complete(model: nn.Module, users: dict[int, list[int]], group_of: dict[int, int]) -> None:
    lost = [name for name, p in model.named_parameters() if id(p) not in users]
    if lost:
        raise RelayError(
            f"{_some(lost)} belong to no layer: name the layer that uses them, "
            "as RelayLayer(call, parameters=[...]) or modules=[...]"
        )
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise RelayError("no layer of the model is trainable: every parameter has requires_grad=False")
    ungrouped = [name for name, p in trainable if id(p) not in group_of]
    if ungrouped:
        raise RelayError(f"{_some(ungrouped)} are in no parameter group: add them, or set requires_grad=False")


def _eps_layers(
    named: Sequence[tuple[str, RelayLayer]],
    names: dict[int, str],
    users: dict[int, list[int]],
    group_of: dict[int, int],
) -> list[EpsLayer]:
    cells: dict[tuple[Any, ...], list[nn.Parameter]] = {}
    placed: set[int] = set()
    for index, (_, layer) in enumerate(named):
        for p in _parameters(layer):
            if id(p) in placed:
                continue
            placed.add(id(p))
            group = group_of[id(p)] if p.requires_grad else None
            # A shared tensor is an EPS layer of its own; the rest of a relay layer is cut by parameter group.
            shared = id(p) if len(users[id(p)]) > 1 else None
            cells.setdefault((index, group, shared), []).append(p)
    titles = _unique_titles([name for name, _ in named])
    built = []
    for (index, group, shared), parameters in cells.items():
        if shared is not None:
            title = f"tied:{names[shared]}"
        elif group is None:
            title = f"{titles[index]}:frozen"
        else:
            title = titles[index] if group == 0 else f"{titles[index]}:group{group}"
        specs = tuple(TensorSpec(names[id(p)], tuple(p.shape)) for p in parameters)
        layout = LayerLayout(title, specs, trainable=group is not None)
        built.append(EpsLayer(layout, tuple(parameters), group, tuple(sorted(set(users[id(parameters[0])])))))
    return built


def _unique_titles(names: Sequence[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name}#{index}" for index, name in enumerate(names)]


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
