"""The relay on a machine with a GPU, in at most eight minutes: equality, device memory, speed over the load, flatness.

1. Equality: five steps in fp32 under deterministic algorithms; every weight against plain PyTorch's gradient
   accumulation on the same device, its gradients put through the golden rule.
2. Device peak for 12 to 96 layers, stash on the host.
3. Streamed against resident: tokens a second over tokens a layer load (a layer crosses the link twice a step however
   many micro-batches it serves). Resident is plain training with weights, gradients and moments on the device and fused
   AdamW; beside it the same with `torch.utils.checkpoint` around each block, which does the work that the relay does.
   The crossover is the smallest load from which the relay keeps 95 % of the latter's speed.
4. Device memory from step to step.

    python benchmarks/gpu.py                # on CUDA; without it, as with --modelled
    python benchmarks/gpu.py --modelled     # the same code, small, on a CPU behind a modelled link: not a GPU's figures

Each part has a share of the time and says what it left out. A table of all parts comes at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# cuBLAS reads it once, before its first product.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.timing import interleave, ratio
from relay_eps.eps import golden
from relay_eps.eps.hyper import AdamHyper
from relay_eps.models.gpt import VOCABULARY, Gpt, next_byte_loss
from relay_eps.models.gpt_config import GptConfig
from relay_eps.relay import ModelledLink, Relay, seed_generators

MIB = 2**20
#: Share of the resident speed, with recompute, from which streaming counts as free.
CROSSOVER = 0.95


@dataclass(frozen=True)
class Place:
    """The device, and the sizes that suit it."""

    device: torch.device
    name: str
    model: GptConfig
    micro_batch: int
    depths: tuple[int, ...]
    loads: tuple[int, ...]
    rounds: int
    wire: str
    link: ModelledLink | None

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.model.context

    def relay(self, model: Gpt, **settings: Any) -> Relay:
        """A relay on this device, weights streamed."""
        settings = {"micro_batch": self.micro_batch, "wire": self.wire, **settings}
        return Relay(model, device=self.device, link=self.link, **settings)

    def batch(self, micro_batches: int, model: GptConfig, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Random bytes in host memory, and the bytes after them."""
        rng = torch.Generator().manual_seed(seed)
        text = torch.randint(VOCABULARY, (micro_batches * self.micro_batch, model.context + 1), generator=rng)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def on_cuda() -> Place:
    return Place(
        torch.device("cuda", torch.cuda.current_device()),
        torch.cuda.get_device_name(),
        GptConfig(layers=12, width=2048, heads=16, context=1024),
        micro_batch=4,
        depths=(12, 24, 48, 96),
        loads=(1, 2, 4, 8, 16, 32),
        rounds=3,
        wire="bf16",
        link=None,
    )


def modelled(gigabytes_a_second: float) -> Place:
    return Place(
        torch.device("cpu"),
        f"a CPU behind a modelled link of {gigabytes_a_second:g} GB/s, not a GPU",
        GptConfig(layers=4, width=64, heads=2, context=32),
        micro_batch=2,
        depths=(12, 24, 48),
        loads=(1, 4, 16),
        rounds=3,
        wire="fp32",
        link=ModelledLink(gigabytes_a_second * 1e9),
    )


class Clock:
    """The time that is left; a part asks whether another piece of work fits."""

    def __init__(self, minutes: float) -> None:
        self._start = time.monotonic()
        self._end = self._start + 60 * minutes
        self._part_end = self._end

    def part(self, until: float) -> None:
        """A part begins that may use the time up to the fraction ``until`` of the whole."""
        self._part_end = self._start + until * (self._end - self._start)

    def fits(self, seconds: float) -> bool:
        """Whether work that takes about so long still fits this part."""
        return time.monotonic() + seconds < self._part_end


# --- equality


def equality(place: Place) -> list[tuple[str, str]]:
    """Difference 0 or not, for each way to run; the worst difference where it is not."""
    model = GptConfig(layers=3, width=128, heads=4, context=64, dropout=0.1)
    ways: dict[str, dict[str, Any]] = {
        "one micro-batch": {"parts": 1},
        "three micro-batches": {"parts": 3},
        "three, stash on the host": {"parts": 3, "stash": "host"},
        "three, clipped (deferred)": {"parts": 3, "max_grad_norm": 0.5},
    }
    torch.use_deterministic_algorithms(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            return [(name, _difference(place, model, **settings)) for name, settings in ways.items()]
    finally:
        torch.use_deterministic_algorithms(False)


def _difference(place: Place, config: GptConfig, parts: int, **settings: Any) -> str:
    hyper = AdamHyper()
    plain = Gpt(config, 1).to(place.device)
    moments = {
        name: (np.zeros(p.shape, np.float32), np.zeros(p.shape, np.float32)) for name, p in plain.named_parameters()
    }
    with place.relay(Gpt(config, 1), wire="fp32", **settings) as relay:
        for step in range(5):
            inputs, targets = place.batch(parts, config, step)
            relay.step(inputs, targets, next_byte_loss)
            _accumulate(place, plain, inputs, targets, step)
            clip = settings.get("max_grad_norm")
            scale = _clip_coefficient(plain, clip) if clip is not None else 1.0
            for name, p in plain.named_parameters():
                assert p.grad is not None
                m, v = moments[name]
                gradient = p.grad.cpu().numpy()
                m, v = golden.fold(m, v, gradient, hyper.fold_scalars(), scale=scale, first=True)
                moments[name] = (m, v)
                updated = golden.apply(p.detach().cpu().numpy(), m, v, hyper.apply_scalars(step + 1))
                p.data.copy_(torch.from_numpy(updated))
        found = relay.state_dict()
    worst = max(float((p.detach().cpu() - found[name]).abs().max()) for name, p in plain.named_parameters())
    return "difference 0" if worst == 0 else f"DIFFERS by up to {worst:.3g}"


def _accumulate(place: Place, plain: Gpt, inputs: torch.Tensor, targets: torch.Tensor, step: int) -> None:
    plain.zero_grad()
    pieces = list(zip(inputs.split(place.micro_batch), targets.split(place.micro_batch), strict=True))
    for micro, (x, y) in enumerate(pieces):
        value = x.to(place.device)
        for index, layer in enumerate(plain):
            seed_generators(0, step, index, micro, place.device)
            value = layer(value)
        loss = next_byte_loss(value, y.to(place.device))
        loss.backward(torch.full_like(loss, float(np.float32(len(x) / len(inputs)))))


def _clip_coefficient(plain: Gpt, clip: float) -> float:
    norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
    return float(torch.clamp(clip / (norm + 1e-6), max=1.0))


# --- memory


def device_peaks(place: Place, clock: Clock) -> list[tuple[int, int]]:
    """(layers, peak bytes) with the stash on the host; deeper models are left out when time is short."""
    found: list[tuple[int, int]] = []
    took = 0.0
    for depth in place.depths:
        if not clock.fits(2.5 * took):
            break
        started = time.monotonic()
        config = _deep(place.model, depth)
        inputs, targets = place.batch(2, config)
        with place.relay(Gpt(config), stash="host") as relay:
            relay.step(inputs, targets, next_byte_loss)
            with relay.measure_device_peak() as peak:
                relay.step(inputs, targets, next_byte_loss)
        found.append((depth, peak.bytes))
        took = time.monotonic() - started
    return found


def step_to_step(place: Place, steps: int = 10) -> list[int]:
    """The device's peak in each of some steps after the first."""
    inputs, targets = place.batch(2, place.model)
    found = []
    with place.relay(Gpt(place.model), stash="host") as relay:
        relay.step(inputs, targets, next_byte_loss)
        for _ in range(steps):
            with relay.measure_device_peak() as peak:
                relay.step(inputs, targets, next_byte_loss)
            found.append(peak.bytes)
    return found


def _deep(model: GptConfig, layers: int) -> GptConfig:
    # Half the width: 96 layers with their moments must fit an ordinary host.
    return GptConfig(layers=layers, width=model.width // 2, heads=model.heads, context=model.context)


# --- speed


@dataclass(frozen=True)
class Load:
    """Speeds at one load, in tokens a second, and the ratios of median times in the interleaved run."""

    tokens_a_load: int
    relay: float
    resident: float
    recomputing: float
    of_resident: float
    of_recomputing: float


def sweep(place: Place, clock: Clock) -> list[Load]:
    """Streamed against resident, from the smallest load up; the largest are left out when time is short."""
    found: list[Load] = []
    took = 0.0
    for micro_batches in place.loads:
        if not clock.fits(2.2 * took):
            break
        started = time.monotonic()
        found.append(_speeds(place, micro_batches))
        took = time.monotonic() - started
    return found


def _speeds(place: Place, micro_batches: int) -> Load:
    inputs, targets = place.batch(micro_batches, place.model)
    with place.relay(Gpt(place.model)) as relay:

        def streamed() -> None:
            relay.step(inputs, targets, next_byte_loss)
            place.synchronize()

        times = interleave(
            {
                "relay": streamed,
                "resident": _resident(place, inputs, targets, recompute=False),
                "recomputing": _resident(place, inputs, targets, recompute=True),
            },
            place.rounds,
            warmup=1,
        )
    tokens = micro_batches * place.tokens
    relay_time, resident, recomputing = (times[name] for name in ("relay", "resident", "recomputing"))
    return Load(
        tokens,
        tokens / relay_time.median,
        tokens / resident.median,
        tokens / recomputing.median,
        ratio(resident, relay_time),
        ratio(recomputing, relay_time),
    )


def _resident(place: Place, inputs: torch.Tensor, targets: torch.Tensor, *, recompute: bool) -> Callable[[], None]:
    dtype = torch.bfloat16 if place.wire == "bf16" else torch.float32
    model = Gpt(place.model).to(place.device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def forward(value: torch.Tensor) -> torch.Tensor:
        last = len(model) - 1
        for index, layer in enumerate(model):
            keep = not recompute or index == last
            value = layer(value) if keep else checkpoint(layer, value, use_reentrant=False)
        return value

    def step() -> None:
        optimizer.zero_grad()
        pieces = list(zip(inputs.split(place.micro_batch), targets.split(place.micro_batch), strict=True))
        for x, y in pieces:
            loss = next_byte_loss(forward(x.to(place.device)), y.to(place.device))
            (loss / len(pieces)).backward()
        optimizer.step()
        place.synchronize()

    return step


# --- the table


def report(place: Place, found: dict[str, Any]) -> None:
    print(f"\nrelay-eps on {place.name}; torch {torch.__version__}\n")
    print("equality, five steps in fp32 against plain PyTorch under the golden rule")
    for name, verdict in found["equality"]:
        print(f"  {name:28} {verdict}")
    shape = _deep(place.model, 0 + place.depths[0])
    print(f"\ndevice peak, width {shape.width}, context {shape.context}, stash on the host")
    for depth, peak in found["peaks"]:
        print(f"  {depth:4} layers {peak / MIB:10.1f} MiB  {peak / found['peaks'][0][1]:.3f} of the first")
    _left_out("depths", place.depths, len(found["peaks"]))
    model = place.model
    print(f"\nspeed, {model.layers} blocks of width {model.width}, wire {place.wire}: tokens a second, medians")
    print(
        f"  {'tokens a load':>14} {'relay':>12} {'resident':>12} {'recomputing':>12} "
        f"{'of resident':>12} {'of recomp.':>12}"
    )
    for load in found["loads"]:
        print(
            f"  {load.tokens_a_load:14,} {load.relay:12,.0f} {load.resident:12,.0f} {load.recomputing:12,.0f} "
            f"{load.of_resident:12.3f} {load.of_recomputing:12.3f}"
        )
    _left_out("loads", place.loads, len(found["loads"]))
    print(f"  {crossover(found['loads'])}")
    flat = found["steps"]
    print(f"\ndevice peak from step to step: {min(flat) / MIB:.2f} to {max(flat) / MIB:.2f} MiB over {len(flat)} steps")


def crossover(loads: list[Load]) -> str:
    """From which load on the relay keeps the wanted share, in words."""
    kept = [load.of_recomputing >= CROSSOVER for load in loads]
    for index, load in enumerate(loads):
        if all(kept[index:]):
            return (
                f"crossover: {CROSSOVER:.0%} of recomputing or more from {load.tokens_a_load:,} tokens a layer load on"
            )
    best = max((load.of_recomputing for load in loads), default=0.0)
    return f"no crossover in this range: at best {best:.0%} of recomputing, wanted {CROSSOVER:.0%}"


def _left_out(what: str, wanted: tuple[int, ...], done: int) -> None:
    if done < len(wanted):
        print(f"  left out for want of time: {what} {', '.join(map(str, wanted[done:]))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modelled", action="store_true", help="small, on the CPU, behind a modelled link")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="the modelled link's bytes a second, in 10**9")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    options = parser.parse_args()
    if options.modelled or not torch.cuda.is_available():
        print("no CUDA device is used: sizes are small, and the figures are those of a model, not of a GPU")
        place = modelled(options.gigabytes)
    else:
        place = on_cuda()
    clock = Clock(options.minutes)
    found: dict[str, Any] = {"equality": equality(place)}
    clock.part(0.4)
    found["peaks"] = device_peaks(place, clock)
    found["steps"] = step_to_step(place)
    clock.part(1.0)
    found["loads"] = sweep(place, clock)
    report(place, found)
    if options.json:
        options.json.write_text(json.dumps({"place": place.name, **found}, default=vars, indent=1) + "\n")
    if any(verdict != "difference 0" for _, verdict in found["equality"]):
        raise SystemExit("the relay's weights differ from plain PyTorch's")


if __name__ == "__main__":
    main()
