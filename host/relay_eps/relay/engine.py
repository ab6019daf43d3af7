"""The relay engine: trains a model one layer at a time, its weights and moments kept in an eager parameter server."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from relay_eps.eps.contract import EagerParamServer
from relay_eps.eps.formats import Format
from relay_eps.eps.hyper import AdamHyper
from relay_eps.errors import RelayEpsError, RelayError
from relay_eps.relay import build, memory, probe, state
from relay_eps.relay.batch import Count, joined, split
from relay_eps.relay.buffers import LayerBuffers
from relay_eps.relay.commit import AdamACollector, ExactCollector, Route
from relay_eps.relay.deferred import Deferral
from relay_eps.relay.gradients import BufferPool
from relay_eps.relay.layers import EpsLayer, LayerPlan, RelayLayer, eps_layers, plan_layers
from relay_eps.relay.optimizer import RelayOptimizer
from relay_eps.relay.outbound import Outbound
from relay_eps.relay.ownership import Ownership
from relay_eps.relay.passes import LossFunction, Machine, TrainingPass, forward_only
from relay_eps.relay.phase import Phase
from relay_eps.relay.randomness import global_stream_kept
from relay_eps.relay.scaling import LossScale
from relay_eps.relay.slots import ModelledLink
from relay_eps.relay.surroundings import step_surroundings, without_autocast_cache

log = logging.getLogger("relay_eps")


@dataclass(frozen=True)
class StepResult:
    """What one step did."""

    #: The mini-batch's mean loss before the update (weighted by what counts in each micro-batch).
    loss: float
    #: Number of the step, from 0.
    step: int
    #: True where no weight was changed: gradients overflowed under loss scaling, or nothing in the batch counted.
    skipped: bool
    #: Global 2-norm of the gradient before clipping, of what is then applied; None without clipping.
    grad_norm: float | None
    micro_batches: int
    samples: int
    #: Where inputs or given side inputs require gradients: each micro-batch's, by its number, as trees like the values.
    input_gradients: Any = None
    side_gradients: dict[str, Any] | None = None


class Relay:
    """Trains ``model`` through an eager parameter server.

    Parameters
    ----------
    model
        Any module. Its parameters move to the server; buffers stay with it, on ``device``.
    layers
        The layers in forward order: submodules, their names, or `RelayLayer`. Not needed for ``nn.Sequential`` nor for
        a model with a method ``relay_layers()``.
    params, lr, betas, eps, weight_decay, v_scale
        As `torch.optim.AdamW` takes them; ``params`` may be parameter groups. ``v_scale``: see `AdamHyper`.
    micro_batch
        Samples the device works on at a time; None takes each mini-batch whole.
    mode
        "exact" sums a layer's micro-batches on the device and gives Adam's own result. "adama" folds each micro-batch's
        gradient at once: less device memory, and another rule (docs/adama.md).
    max_grad_norm, loss_scale
        Global-norm clipping, and loss scaling for fp16. Either defers the updates to the end of the backward and keeps
        a summed gradient in the server (4 bytes a parameter). Exact mode only.
    stash
        "device" or "host": where layer inputs and boundary gradients wait. On the host, device memory does not depend
        on depth.
    device, link
        "cpu" or a CUDA device. On a CPU weights are used where they lie; a `ModelledLink` streams them into slots.
    server, wire
        The server, or the wire format of the `SoftwareEPS` that is made where none is given.
    seed
        Keys every random draw inside the layers, with step, layer and micro-batch.

    Raises RelayError, or ContractError for values outside the contract, before anything is allocated for good.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module | str | RelayLayer] | None = None,
        *,
        params: Iterable[Any] | None = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        v_scale: float = 1.0,
        micro_batch: int | None = None,
        mode: str = "exact",
        max_grad_norm: float | None = None,
        loss_scale: LossScale | None = None,
        stash: str = "device",
        device: str | torch.device = "cpu",
        link: ModelledLink | None = None,
        server: EagerParamServer | None = None,
        wire: str | Format | None = None,
        seed: int = 0,
    ) -> None:
        self._deferral = Deferral(max_grad_norm, loss_scale, tuple(model.parameters()))
        build.check_choices(mode, stash, micro_batch, max_grad_norm, deferred=self._deferral.active)
        self.model = model
        self.micro_batch = micro_batch
        self.mode = mode
        self.seed = seed
        #: Steps made, skipped ones included; and those skipped. The next step's random draws are keyed by the former.
        self.steps_done = 0
        self.steps_skipped = 0
        self.loss_scale = loss_scale
        self._device = build.resolve_device(device)
        self._phase = Phase()
        self._process = os.getpid()
        self._settling = False
        self._graph_checked = False
        self._told_no_gradient: set[str] = set()
        trainable = [p for p in model.parameters() if p.requires_grad]
        if params is None and not trainable:
            raise RelayError("no layer of the model is trainable: every parameter has requires_grad=False")
        self.optimizer = RelayOptimizer(
            trainable if params is None else params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            v_scale=v_scale,
        )
        self.plans: tuple[LayerPlan, ...] = plan_layers(model, layers, self.optimizer.groups())
        self._owns_server = server is None
        self.server = server if server is not None else build.make_server(wire, self._device)
        if server is not None and wire is not None and Format.parse(wire) is not server.capabilities.wire:
            raise RelayError(
                f"the server's wire format is {server.capabilities.wire.value}, not {Format.parse(wire).value}"
            )
        probe.warn_if_slow(self._device, self.server.capabilities.wire)
        self._link = build.make_link(self.server, self._device, link)
        self._outbound = Outbound(self._link)
        build.load_model(self.server, self._link, self.plans)
        self._ownership = Ownership(model, self.eps_layers)
        owners: dict[Any, LayerBuffers] = {}
        self._machine = Machine(
            self.plans,
            self._link,
            tuple(LayerBuffers(plan, owners) for plan in self.plans),
            stash == "host",
            seed,
        )
        for buffers in self._machine.buffers:
            buffers.move_to(self._device)
        largest = max(sum(e.layout.size for e in plan.own) for plan in self.plans)
        self._route = Route(
            self.server, self._link, self._outbound, BufferPool(2, largest, self._device), {}, self._tell_no_gradient
        )

    # --- training

    def step(
        self,
        inputs: Any,
        targets: Any,
        loss_fn: LossFunction,
        *,
        side: dict[str, Any] | None = None,
        count: Count = None,
    ) -> StepResult:
        """Train on one mini-batch: forward, backward and update, layer by layer.

        ``inputs``, ``targets`` and the values of ``side`` are tensors, or trees of tensors, None and plain values; each
        tensor is split along its first dimension, unless wrapped in `Whole`. ``loss_fn(output, targets)`` returns a
        micro-batch's mean loss; ``count`` says what the mean is over: None for samples, an int for labels other than
        it, or a function of a micro-batch's targets.

        Raises NonFiniteLoss and NonFiniteGradient; TornStep if an earlier failure left some layers updated and others
        not. Unless the step is torn, a failure leaves weights, moments and buffers as they were.
        """
        self._require_idle("step")
        micros, samples = split(inputs, targets, side, self.micro_batch, count)
        if not micros:
            log.warning("step %d was skipped: nothing in its mini-batch counts", self.steps_done)
            self.steps_done += 1
            self.steps_skipped += 1
            return StepResult(0.0, self.steps_done - 1, True, None, 0, samples)
        hyper = self.optimizer.hyper()
        self._phase.begin_step()
        self._settling = False
        self._outbound.reset()
        run = None
        try:
            with step_surroundings(self._device):
                run = TrainingPass(
                    self._machine, micros, loss_fn, step=self.steps_done, loss_scale=self._deferral.scale
                )
                norm, skipped = self._train(run, hyper, [m.index for m in micros])
                result = self._finish(run, samples, norm, skipped)
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            self._ownership.note()
            if run is not None:
                run.close()
        # The step is whole: what a user's hook on the optimizer raises must not tear it.
        if not result.skipped:
            self.optimizer.count_step()
        return result

    def forward(self, inputs: Any, *, side: dict[str, Any] | None = None) -> Any:
        """The model's output for a batch, forward-only: one fetch a layer, nothing stashed, no gradient.

        Micro-batches' outputs are joined along the first dimension. The model's train or eval mode is left to you.
        """
        self._require_idle("forward")
        micros, _ = split(inputs, None, side, self.micro_batch)
        with self._visiting():
            return joined([out for _, out in forward_only(self._machine, micros)])

    def evaluate(
        self,
        inputs: Any,
        targets: Any,
        loss_fn: LossFunction,
        *,
        side: dict[str, Any] | None = None,
        count: Count = None,
    ) -> float:
        """The batch's mean loss, forward-only and in eval mode; weighted as `step` weights it. Trains nothing."""
        self._require_idle("evaluate")
        micros, _ = split(inputs, targets, side, self.micro_batch, count)
        modes = {m: m.training for m in self.model.modules()}
        self.model.eval()
        try:
            with self._visiting(), torch.no_grad(), global_stream_kept(self._device):
                losses = [
                    m.weight * float(loss_fn(out, self._machine.place(m.targets)))
                    for m, out in forward_only(self._machine, micros)
                ]
                return sum(losses, 0.0)
        finally:
            for module, training in modes.items():
                module.training = training

    # --- state

    def state_dict(self) -> dict[str, torch.Tensor]:
        """fp32 master weights and buffers as copies on the CPU, under the model's own names."""
        self._require_idle("state_dict")
        return state.state_dict(self.model, self.server, self.eps_layers)

    def load_state_dict(self, values: dict[str, torch.Tensor]) -> None:
        """Replace weights and buffers, at any time between steps; moments and t stay. RelayError on a mismatch."""
        self._require_idle("load_state_dict", torn=True)
        state.check_state_dict(self.model, values)
        with self._phase.whole("a state dict was loaded half"):
            state.load_state_dict(self.model, self.server, self.eps_layers, values)

    def save(self, folder: str | Path, extra: dict[str, Any] | None = None) -> Path:
        """Write a checkpoint "step-…" into ``folder``, whole or not at all; ``extra`` is any JSON-able record.

        Everything that the next step depends on is in it: weights, moments, t, buffers, parameter groups, loss scale,
        seed and step. Raises TornStep, and CheckpointError with the old checkpoint intact.
        """
        self._require_idle("save")
        return state.save(self, Path(folder), extra or {})

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Load the newest checkpoint in ``folder`` (or the checkpoint ``folder``); returns its ``extra``.

        Everything is verified before anything is changed; a torn relay is sound again afterwards.
        """
        self._require_idle("load", torn=True)
        extra = state.load(self, Path(folder), lambda: self._phase.tear("a checkpoint was loaded half"))
        self._phase.mend()
        return extra

    def use_seed(self, seed: int) -> None:
        """Key the draws of later steps by another seed."""
        self.seed = seed
        self._machine = replace(self._machine, seed=seed)

    # --- facts

    @property
    def device(self) -> torch.device:
        """Where the layers compute."""
        return self._device

    @property
    def eps_layers(self) -> tuple[EpsLayer, ...]:
        """The EPS layers, each once."""
        return eps_layers(self.plans)

    @property
    def deferred(self) -> bool:
        """Whether updates wait for the end of the backward."""
        return self._deferral.active

    @property
    def torn(self) -> bool:
        """Whether a failure left some layers updated and others not."""
        return self._phase.torn

    @property
    def resident_bytes(self) -> int:
        """Device bytes held between steps: weight slots, gradient buffers, tied sums."""
        tied = sum(b.nbytes for buffers in self._route.tied.values() for b in buffers)
        return self._link.resident_bytes + self._route.pool.nbytes + tied

    def measure_device_peak(self) -> AbstractContextManager[memory.DevicePeak]:
        """Measure the device's peak bytes over a block, as `relay_eps.relay.memory` defines them. Slow on a CPU."""
        return memory.measure(self._device, self.resident_bytes)

    def close(self) -> None:
        """Put the weights back into the model, as fp32 on the CPU, stop threads, and close the server if it is ours.

        Moments are gone with a server that the relay made: `save` first to go on later. Closing twice is harmless.
        """
        if self._phase.closed:
            return
        if self._phase.torn:
            log.warning("the relay is closed torn: the model's weights are those of a step that was made only in part")
        self._phase.close()
        self._outbound.close()
        self._link.close()
        with suppress(RelayEpsError):
            build.return_weights(self.server, self.plans, remove=self._owns_server)
        if self._owns_server:
            self.server.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- inside

    def _require_idle(self, call: str, *, torn: bool = False) -> None:
        if os.getpid() != self._process:
            raise RelayError(
                f"{call} was called in a forked process, which has none of the relay's threads: make one there"
            )
        self._phase.require_idle(call, torn=torn)
        self._ownership.check()

    def _train(self, run: TrainingPass, hyper: Sequence[AdamHyper], micros: Sequence[int]) -> tuple[float | None, bool]:
        """Forward, backward and update; returns the gradient's norm, where it is known, and whether it was skipped."""
        adama = self.mode == "adama"
        run.forward(with_last=adama)
        if adama:
            run.backward(AdamACollector(self._route, hyper, micros), last_ran=True, check_graph=not self._graph_checked)
            self._outbound.drain()
            return None, False
        collector = ExactCollector(self._route, hyper, micros, deferred=self._deferral.active)
        run.backward(collector, last_ran=False, check_graph=not self._graph_checked)
        self._outbound.drain()
        if not self._deferral.active:
            return None, False
        norm, scale = self._deferral.decide(collector)
        if scale is None:
            return norm, True
        self._settling = True
        collector.settle(scale)
        return norm, False

    def _finish(self, run: TrainingPass, samples: int, norm: float | None, skipped: bool) -> StepResult:
        for buffers in self._machine.buffers:
            if skipped:
                buffers.restore()
            else:
                buffers.commit()
        self._graph_checked = True
        step = self.steps_done
        self.steps_done += 1
        self.steps_skipped += skipped
        inputs, sides = run.gradients_of_inputs()
        self._phase.end_step()
        return StepResult(run.mean_loss(), step, skipped, norm, len(run.losses), samples, inputs, sides)

    def _give_up(self, error: BaseException) -> None:
        # Until it is known better, as when a second Ctrl-C comes here.
        self._phase.tear("the last step failed after some layers had been updated")
        self._phase.end_step()
        sent = self._outbound.halt()
        torn = self._settling or (sent and not self._deferral.active)
        self._link.abort()
        self._route.pool.reclaim()
        # From the top, so that where layers share a module the lowest one's earliest values come last.
        for buffers in reversed(self._machine.buffers):
            if torn:
                buffers.commit()
            else:
                buffers.restore()
        if not torn:
            self._phase.mend()
        elif hasattr(error, "add_note"):
            error.add_note("The step is torn: some layers were updated, others not. Load a checkpoint to go on.")

    @contextmanager
    def _visiting(self) -> Iterator[None]:
        try:
            with without_autocast_cache():
                yield
        except BaseException:
            self._link.abort()
            raise
        finally:
            self._ownership.note()

    def _tell_no_gradient(self, names: list[str]) -> None:
        new = [n for n in names if n not in self._told_no_gradient]
        if new:
            self._told_no_gradient.update(new)
            log.warning("no gradient reached %s: taken as zero while its neighbours are updated", ", ".join(new))
