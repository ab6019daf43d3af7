"""What the relay holds, in the server, in the process and on the device.

- Server: bytes a parameter, beside plain PyTorch with AdamW.
- Process: the resident peak while a relay is made and while a checkpoint is loaded, each in a process of its own, over
  what it held before the model was built; wanted is the store and two layers' weights (and 2 MiB for Python's own).
- Device: the peak over depth with the stash on the host, over the number of micro-batches of one size, and from step to
  step. Device bytes are counted on the CPU as docs/memory.md defines them, with weights in two slots.

    python benchmarks/memory.py                                # 134 M parameters, depths 12 to 96
    python benchmarks/memory.py --layers 8 --width 256 --depths 4 8 --micro-batches 1 2 --json memory.json
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.table import print_table
from relay_eps.relay import ModelledLink, Relay

MIB = 2**20
#: Samples of a micro-batch, and features, in the measurements of the device.
MICRO_BATCH, FEATURES = 16, 128


@dataclass(frozen=True)
class Peak:
    """Resident bytes of a process that made a relay: the store, one layer's weights, and the peak over the start."""

    store: int
    layer: int
    peak: int

    @property
    def layers_beyond(self) -> float:
        """How many layers' weights the peak is above the store."""
        return (self.peak - self.store) / self.layer

    @property
    def holds(self) -> bool:
        """Whether the peak is at most the store and two layers, and 2 MiB."""
        return self.peak <= self.store + 2 * (self.layer + MIB)


def layered(layers: int, width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(layers)))


def batch(samples: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(samples, width, generator=rng), torch.randn(samples, width, generator=rng)


# --- the server


def bytes_a_parameter() -> dict[str, float]:
    """Bytes that training keeps for each parameter, after a step."""
    layers, width = 4, 512
    x, y = batch(8, width)
    count = sum(p.numel() for p in layered(layers, width).parameters())
    found = {"plain PyTorch, AdamW": plain_bytes(layered(layers, width), x, y) / count}
    settings: dict[str, dict[str, Any]] = {
        "relay, eager commit": {},
        "relay, AdamA": {"mode": "adama"},
        "relay, deferred commit (clipping)": {"max_grad_norm": 1.0},
    }
    for name, chosen in settings.items():
        with Relay(layered(layers, width), micro_batch=4, **chosen) as relay:
            relay.step(x, y, nn.functional.mse_loss)
            found[name] = relay.server.stored_bytes() / count
    return found


def plain_bytes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> int:
    """Weights, gradients and moments."""
    optimizer = torch.optim.AdamW(model.parameters())
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    moments = sum(s["exp_avg"].nbytes + s["exp_avg_sq"].nbytes for s in optimizer.state.values())
    return moments + sum(p.nbytes + (0 if p.grad is None else p.grad.nbytes) for p in model.parameters())


# --- the process


def resident(field: str) -> int:
    """VmRSS, or VmHWM, of this process in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def forget_peak() -> None:
    """Let VmHWM start again from VmRSS."""
    Path("/proc/self/clear_refs").write_text("5")


def process_peak(phase: str, layers: int, width: int, folder: Path) -> Peak:
    """Runs in a process of its own: the peak of ``phase``, "construct" (which saves, too) or "resume"."""
    # What the first relay of a process brings with it, threads and libraries, is not counted.
    with Relay(layered(2, 8)) as warm:
        warm.save(folder / "warm")
    # And a process that has worked for a while: the C library keeps what was freed, unless it is told otherwise.
    torch.zeros(6 * MIB)
    before = resident("VmRSS")
    model = layered(layers, width)
    forget_peak()
    with Relay(model) as relay:
        if phase == "resume":
            forget_peak()
            relay.load(folder / "run")
        peak = resident("VmHWM") - before
        store = relay.server.stored_bytes()
        if phase == "construct":
            relay.save(folder / "run")
    return Peak(store, store // layers // 3, peak)


def process_peaks(layers: int, width: int) -> dict[str, Peak]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for phase in ("construct", "resume"):
            command = [sys.executable, __file__, "--layers", str(layers), "--width", str(width)]
            child = subprocess.run(
                [*command, "--phase", phase, "--folder", folder], check=True, capture_output=True, text=True
            )
            found[phase] = Peak(**json.loads(child.stdout))
    return found


# --- the device


def device_peaks(depth: int, micro_batches: int, steps: int = 1, **settings: Any) -> list[int]:
    """The peak of each of ``steps`` steps, after a first one."""
    x, y = batch(micro_batches * MICRO_BATCH, FEATURES)
    with Relay(layered(depth, FEATURES), micro_batch=MICRO_BATCH, link=ModelledLink(), **settings) as relay:
        relay.step(x, y, nn.functional.mse_loss)
        peaks = []
        for _ in range(steps):
            with relay.measure_device_peak() as peak:
                relay.step(x, y, nn.functional.mse_loss)
            peaks.append(peak.bytes)
    return peaks


def growth(peak: Callable[[int], int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    return [(size, peak(size)) for size in sizes]


# --- the report


def mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.2f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32, help="of the model whose process is measured")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depths", type=int, nargs="+", default=[12, 24, 48, 96])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--steps", type=int, default=5, help="steps of the measurement from step to step")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--phase", choices=("construct", "resume"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        print(json.dumps(asdict(process_peak(options.phase, options.layers, options.width, options.folder))))
        return

    server = bytes_a_parameter()
    print_table("Kept for training", ("", "bytes a parameter"), [(n, f"{v:.2f}") for n, v in server.items()])

    process = process_peaks(options.layers, options.width)
    print_table(
        f"Process, {options.layers} layers of {options.width} x {options.width}: resident peak over the start",
        ("", "store", "peak", "layers beyond the store", "wanted <= 2"),
        [
            (phase, mib(p.store), mib(p.peak), f"{p.layers_beyond:.2f}", "holds" if p.holds else "MISSED")
            for phase, p in process.items()
        ],
    )

    few = min(options.micro_batches[-1], 4)
    depth = min(options.depths)
    device = {
        "depth, stash on the host": growth(lambda n: device_peaks(n, few, stash="host")[0], options.depths),
        "depth, stash on the device": growth(lambda n: device_peaks(n, few)[0], options.depths),
        "micro-batches, stash on the host": growth(
            lambda n: device_peaks(depth, n, stash="host")[0], options.micro_batches
        ),
        "step, stash on the host": list(enumerate(device_peaks(depth, few, options.steps, stash="host"), 1)),
    }
    for title, peaks in device.items():
        what = title.split(",")[0]
        print_table(f"Device peak over {title}", (what, "peak"), [(str(n), mib(peak)) for n, peak in peaks])
    if options.json:
        found = {"bytes_a_parameter": server, "process": {n: asdict(p) for n, p in process.items()}, "device": device}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
