"""What only a GPU can show, in at most eight minutes: equal bits, flat memory, and how fast streaming is.

1. Equality: training on the device under deterministic algorithms, against plain PyTorch's gradients put through the
   golden rule. Wanted: no weight differs.
2. Device peak over depth, over micro-batches, and from step to step, with the stash on the host.
3. Speed of streamed training, as tokens/s, over tokens a layer load, against training with everything resident: plain,
   and with `torch.utils.checkpoint` around every layer but the last, which computes what the relay computes. The
   crossover is where streaming reaches 95 % of the latter.
4. Overlap: a step of one sample is transfers and updates alone, a checkpointed resident step computing alone; a relay
   step that takes less than both together hides the one behind the other.

Without CUDA, or with --modelled, the same code runs on the CPU at a small size over a modelled link. Its figures show
that the script works, and nothing about any GPU.

    python benchmarks/gpu.py --json gpu.json
    python benchmarks/gpu.py --modelled --minutes 1
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

# Before torch makes a handle: deterministic cuBLAS needs workspaces of a fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.budget import Budget
from benchmarks.gpu_report import Found, report
from relay_eps.eps import golden
from relay_eps.eps.hyper import AdamHyper
from relay_eps.models.gpt import VOCABULARY, Gpt, next_byte_loss
from relay_eps.models.gpt_config import GptConfig
from relay_eps.relay import ModelledLink, Relay, seed_generators

MIB = 2**20


@dataclass(frozen=True)
class Plan:
    """Sizes; tokens are bytes of text."""

    device: torch.device
    wire: str
    #: Set where a modelled link stands for the device's.
    link: ModelledLink | None
    model: GptConfig
    #: Samples of a micro-batch, of ``model.context`` tokens each.
    micro_batch: int
    depths: tuple[int, ...]
    micro_batches: tuple[int, ...]
    steps: int
    rounds: int

    def relay(self, model: Gpt, **settings: Any) -> Relay:
        return Relay(model, **{"device": self.device, "link": self.link, "wire": self.wire, **settings})


def full_plan() -> Plan:
    return Plan(
        torch.device("cuda"),
        "bf16",
        None,
        GptConfig(layers=24, width=1024, heads=16, context=1024),
        micro_batch=4,
        depths=(12, 24, 48, 96),
        micro_batches=(1, 2, 4, 8, 16, 32),
        steps=5,
        rounds=3,
    )


def small_plan() -> Plan:
    return Plan(
        torch.device("cpu"),
        "fp32",
        ModelledLink(bytes_per_second=1e8),
        GptConfig(layers=4, width=64, heads=4, context=32),
        micro_batch=2,
        depths=(2, 4, 8),
        micro_batches=(1, 4, 16),
        steps=3,
        rounds=3,
    )


# --- what every part needs


def text(samples: int, context: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets of random bytes, on the host."""
    rng = torch.Generator().manual_seed(seed)
    found = torch.randint(VOCABULARY, (samples, context + 1), generator=rng)
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, work: Callable[[], object]) -> float:
    finish(device)
    started = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - started


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Deterministic algorithms, attention by its formula, no TF32, as equality needs; as before afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.matmul.allow_tf32
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cuda.matmul.allow_tf32 = before[1]


# --- 1. equality


class GoldenTraining:
    """Plain PyTorch's gradients on the device, summed in fp32, through the golden rule on the host."""

    def __init__(self, plan: Plan, config: GptConfig, wire: str, hyper: AdamHyper) -> None:
        self._device, self._hyper = plan.device, hyper
        self._dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[wire]
        self._model = Gpt(config)
        self.weights = [p.detach().numpy().copy() for p in self._model.parameters()]
        self._moments = [(np.zeros_like(w), np.zeros_like(w)) for w in self.weights]
        self._model.to(self._device, self._dtype)

    def step(self, number: int, inputs: Tensor, targets: Tensor, micro_batch: int, clip: float | None) -> None:
        parameters = list(self._model.parameters())
        total: list[Tensor] = []
        for micro, (x, y) in enumerate(zip(inputs.split(micro_batch), targets.split(micro_batch), strict=True)):
            carried = x.to(self._device)
            for index, layer in enumerate(self._model):
                seed_generators(0, number, index, micro, self._device)
                carried = layer(carried)
            loss = next_byte_loss(carried, y.to(self._device))
            upstream = torch.full_like(loss, float(np.float32(len(x) / len(inputs))))
            found = [g.float() for g in torch.autograd.grad(loss, parameters, upstream)]
            total = [a + b for a, b in zip(total, found, strict=True)] if total else found
        scale = 1.0
        if clip is not None:
            scale = float(torch.clamp(clip / (torch.nn.utils.get_total_norm(total) + 1e-6), max=1.0))
        fold, apply = self._hyper.fold_scalars(), self._hyper.apply_scalars(number + 1)
        for i, gradient in enumerate(total):
            m, v = golden.fold(*self._moments[i], gradient.cpu().numpy(), fold, scale=scale, first=True)
            self._moments[i] = (m, v)
            self.weights[i] = golden.apply(self.weights[i], m, v, apply)
            with torch.no_grad():
                parameters[i].copy_(torch.from_numpy(self.weights[i]))


def equality(plan: Plan, budget: Budget, found: Found) -> None:
    config = GptConfig(layers=3, width=64, heads=4, context=32, dropout=0.1)
    # Micro-batches of a mini-batch of 6, an uneven split among them; where the stash waits; clipping, which defers.
    ways = [(2, "device", None), (6, "device", None), (4, "device", None), (2, "host", None), (2, "device", 0.5)]
    cases = list(itertools.product(("fp32", "bf16") if plan.wire == "bf16" else ("fp32",), ways))
    for wire, (micro_batch, stash, clip) in budget.points("equality", cases, lambda case: 1.0):
        settings = {"micro_batch": micro_batch, "stash": stash, "max_grad_norm": clip}
        with exact_arithmetic():
            reference = GoldenTraining(plan, config, wire, AdamHyper(lr=1e-3))
            with plan.relay(Gpt(config), wire=wire, lr=1e-3, **settings) as relay:
                for number in range(5):
                    inputs, targets = text(6, config.context, number)
                    relay.step(inputs, targets, next_byte_loss)
                    reference.step(number, inputs, targets, micro_batch, clip)
                weights = [w.numpy() for w in relay.state_dict().values()]
        pairs = zip(weights, reference.weights, strict=True)
        found.equality.append(
            {
                "wire": wire,
                "micro_batches": math.ceil(6 / micro_batch),
                "stash": stash,
                "clipped": clip is not None,
                "weights": sum(w.size for w in weights),
                "differ": sum(int((a.view(np.uint32) != b.view(np.uint32)).sum()) for a, b in pairs),
            }
        )


# --- 2. device peak


@dataclass(frozen=True)
class PeakPoint:
    """A model and a mini-batch whose device peak is measured in ``steps`` steps, after a first one."""

    over: str
    depth: int
    micro_batches: int
    steps: int = 1

    def __str__(self) -> str:
        return f"depth {self.depth} with {self.micro_batches} micro-batches"

    @property
    def cost(self) -> float:
        """Making the model, then the steps."""
        return self.depth * (2 + 0.1 * self.micro_batches * (1 + self.steps))


def peaks(plan: Plan, budget: Budget, found: Found) -> None:
    shallow, few = plan.depths[0], plan.micro_batches[min(2, len(plan.micro_batches) - 1)]
    points = [PeakPoint("step", shallow, few, plan.steps)]
    points += [PeakPoint("micro-batches", shallow, n) for n in plan.micro_batches]
    points += [PeakPoint("depth", depth, few) for depth in plan.depths]
    for point in budget.points("device peak", points, lambda point: point.cost):
        config = replace(plan.model, layers=point.depth)
        if host_bytes(config) > 0.8 * available_bytes():
            budget.left_out.append(f"device peak: {point} needs {host_bytes(config) / 1e9:.0f} GB of host memory")
            continue
        inputs, targets = text(point.micro_batches * plan.micro_batch, plan.model.context)
        with plan.relay(Gpt(config), stash="host", micro_batch=plan.micro_batch) as relay:
            relay.step(inputs, targets, next_byte_loss)
            for step in range(1, point.steps + 1):
                with relay.measure_device_peak() as peak:
                    relay.step(inputs, targets, next_byte_loss)
                value = {"step": step, "micro-batches": point.micro_batches, "depth": point.depth}[point.over]
                found.peaks.append({"over": point.over, "value": value, "bytes": peak.bytes})


def host_bytes(config: GptConfig) -> int:
    """Host memory of a relay: 14 bytes a parameter of the blocks (p, m, v, a 16-bit wire copy), and 4 to close it."""
    return 18 * config.layers * 12 * config.width**2


def available_bytes() -> int:
    """Host memory that programs can still have."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/meminfo has no MemAvailable")


# --- 3. speed, and 4. overlap


def resident(plan: Plan, *, checkpointed: bool) -> Callable[[Tensor, Tensor], None]:
    """A plain training step with everything on the device: weights in the wire format, fused AdamW."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[plan.wire]
    model = Gpt(plan.model).to(plan.device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        for x, y in zip(inputs.split(plan.micro_batch), targets.split(plan.micro_batch), strict=True):
            carried = x.to(plan.device)
            for layer in model:
                # The relay's last layer keeps its graph, too.
                kept = not checkpointed or layer is model[-1]
                carried = layer(carried) if kept else checkpoint(layer, carried, use_reentrant=False)
            (next_byte_loss(carried, y.to(plan.device)) * (len(x) / len(inputs))).backward()
        optimizer.step()

    return step


def speed(plan: Plan, budget: Budget, found: Found) -> None:
    contenders: dict[str, Callable[[Tensor, Tensor], object]] = {
        "resident": resident(plan, checkpointed=False),
        "checkpointed": resident(plan, checkpointed=True),
    }
    with plan.relay(Gpt(plan.model), micro_batch=plan.micro_batch) as relay:
        contenders["streamed"] = lambda x, y: relay.step(x, y, next_byte_loss)
        one = text(1, plan.model.context)
        for work in contenders.values():
            work(*one)
        # Transfers and updates are the same in every step; a step of one sample is little else.
        alone = statistics.median(timed(plan.device, lambda: contenders["streamed"](*one)) for _ in range(5))
        for micro_batches in budget.points("speed and overlap", plan.micro_batches, lambda n: 1.0 + n):
            batch = text(micro_batches * plan.micro_batch, plan.model.context)
            median = in_turn(plan, {name: partial(work, *batch) for name, work in contenders.items()})
            tokens = batch[0].numel()
            rates = {name: tokens / seconds for name, seconds in median.items()}
            found.speed.append({"tokens": tokens, "micro_batches": micro_batches, **rates})
            computing, whole = median["checkpointed"], median["streamed"]
            found.overlap.append(
                {"tokens": tokens, "transfers and updates": alone, "computing": computing, "relay": whole}
            )


def in_turn(plan: Plan, contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each, taken in turns after a first run, which allocates."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for work in contenders.values():
        work()
    for _ in range(plan.rounds):
        for name, work in contenders.items():
            seconds[name].append(timed(plan.device, work))
    return {name: statistics.median(times) for name, times in seconds.items()}


# --- the whole


def machine(plan: Plan) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if plan.link is None else f"CPU, {platform.machine()}",
        "modelled": plan.link is not None,
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "wire": plan.wire,
    }
    if plan.link is not None:
        return {**facts, "link, bytes/s": plan.link.bytes_per_second}
    from relay_eps.relay.pinned import pinned_empty

    host = torch.from_numpy(pinned_empty(256 * MIB))
    there = torch.empty_like(host, device=plan.device)
    for way, copy in (
        ("to the device", lambda: there.copy_(host, non_blocking=True)),
        ("from the device", lambda: host.copy_(there, non_blocking=True)),
    ):
        copy()
        facts[f"link {way}, bytes/s"] = host.nbytes / min(timed(plan.device, copy) for _ in range(5))
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modelled", action="store_true", help="small, on the CPU, over a modelled link")
    parser.add_argument("--minutes", type=float, default=8.0, help="time to keep to; what does not fit is left out")
    parser.add_argument("--width", type=int, help="features of a position, a multiple of 64")
    parser.add_argument("--micro-batch", type=int, help="samples of a micro-batch; fewer for a small device")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    options = parser.parse_args()
    plan = full_plan() if torch.cuda.is_available() and not options.modelled else small_plan()
    if options.width:
        plan = replace(plan, model=replace(plan.model, width=options.width, heads=options.width // 64))
    if options.micro_batch:
        plan = replace(plan, micro_batch=options.micro_batch)
    budget = Budget(60 * options.minutes, {"equality": 1.0, "device peak": 3.0, "speed and overlap": 3.0})
    found = Found(machine(plan))
    for part in (equality, peaks, speed):
        part(plan, budget, found)
    found.left_out = budget.left_out
    report(found, plan.model, plan.micro_batch)
    if options.json:
        options.json.write_text(json.dumps(asdict(found), indent=1))
    if any(row["differ"] for row in found.equality):
        sys.exit("weights differ from the reference")


if __name__ == "__main__":
    main()
