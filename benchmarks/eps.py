"""Speed of the EPS kernels against `torch.optim.AdamW(fused=True)`, as ratios of medians from one interleaved run.

Both sides work on one flat fp32 tensor, with the same number of threads and in the same kind of memory (huge pages,
for torch's weights, gradient and moments too). Fold-and-apply moves what torch's step moves: 28 bytes a parameter.

    python benchmarks/eps.py                     # 100 M with 2 threads and 1, 12.6 M with 2
    python benchmarks/eps.py --parameters 5e7 --threads 4 --rounds 9 --json out.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.timing import Times, interleave, ratio
from relay_eps.eps.hyper import AdamHyper
from relay_eps.eps.kernels import KernelArithmetic, instruction_sets
from relay_eps.eps.memory import aligned_empty

HYPER = AdamHyper()


@dataclass(frozen=True)
class Case:
    """One size and thread count, and the ratio to torch that the project asks of it."""

    parameters: int
    threads: int
    rounds: int
    wanted: float


@dataclass(frozen=True)
class Ratio:
    """A measured ratio beside its bound; ``holds`` is whether it is on the right side."""

    name: str
    value: float
    bound: str
    holds: bool


CASES: tuple[Case, ...] = (
    Case(100_000_000, 2, 15, 0.97),
    Case(12_600_000, 2, 61, 1.05),
    Case(100_000_000, 1, 11, 0.97),
)


def section(parameters: int, dtype: type = np.float32) -> NDArray:
    return aligned_empty(parameters * np.dtype(dtype).itemsize).view(dtype)


def fused_adamw(weights: NDArray, gradient: NDArray) -> torch.optim.Optimizer:
    """Torch's optimizer on a copy of ``weights``, all of it in memory of the same kind as the EPS's."""
    size = weights.size
    held = [torch.from_numpy(section(size)) for _ in range(4)]
    parameter = torch.nn.Parameter(held[0].copy_(torch.from_numpy(weights)))
    parameter.grad = held[1].copy_(torch.from_numpy(gradient))
    optimizer = torch.optim.AdamW(
        [parameter], lr=HYPER.lr, betas=(HYPER.beta1, HYPER.beta2), weight_decay=HYPER.weight_decay, fused=True
    )
    optimizer.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": held[2], "exp_avg_sq": held[3]}
    return optimizer


def measure(case: Case) -> dict[str, Times]:
    """Times of one pass of each contender."""
    torch.set_num_threads(case.threads)
    kernels = KernelArithmetic(threads=case.threads)
    rng = np.random.default_rng(0)
    p, m, v, g = (section(case.parameters) for _ in range(4))
    rng.standard_normal(out=p, dtype=np.float32)
    rng.standard_normal(out=g, dtype=np.float32)
    g_bf16 = section(case.parameters, np.uint16)
    kernels.convert(g, g_bf16)
    optimizer = fused_adamw(p, g)
    fold, apply = HYPER.fold_scalars(), HYPER.apply_scalars(10)
    return interleave(
        {
            "torch fused AdamW": optimizer.step,
            "fold_apply": lambda: kernels.fold_apply(p, m, v, g, fold, apply, None, scale=1.0, first=True),
            "fold": lambda: kernels.fold(m, v, g, fold, scale=1.0, first=True),
            "fold, bf16 gradient": lambda: kernels.fold(m, v, g_bf16, fold, scale=1.0, first=True),
            "apply": lambda: kernels.apply(p, m, v, apply, None),
        },
        case.rounds,
    )


def judge(case: Case, times: dict[str, Times]) -> list[Ratio]:
    """The ratios that the project has bounds for."""

    def at_least(name: str, value: float, bound: float) -> Ratio:
        return Ratio(name, value, f">= {bound}", value >= bound)

    one_pass, fold, apply = times["fold_apply"], times["fold"], times["apply"]
    found = [at_least("fold_apply, speed over torch's", ratio(times["torch fused AdamW"], one_pass), case.wanted)]
    if case.parameters >= 100_000_000 and case.threads == 2:
        two_passes = Times("fold, then apply", tuple(a + b for a, b in zip(fold.seconds, apply.seconds, strict=True)))
        share = ratio(one_pass, two_passes)
        found.append(Ratio("fold_apply, time over fold and apply", share, "<= 0.72", share <= 0.72))
        found.append(at_least("fold, bf16 speed over fp32", ratio(fold, times["fold, bf16 gradient"]), 1.1))
    return found


def report(case: Case, times: dict[str, Times], ratios: list[Ratio]) -> None:
    print(f"\n{case.parameters / 1e6:.1f} M parameters, {case.threads} threads, {case.rounds} rounds")
    for name, taken in times.items():
        speed = case.parameters / taken.median / 1e9
        print(f"  {name:36} {1e3 * taken.median:8.2f} ms  {speed:6.3f} G parameters/s  spread {taken.spread:6.1%}")
    for found in ratios:
        print(f"  {found.name:36} {found.value:8.3f}     {found.bound:8}  {'holds' if found.holds else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, help="one case of this size, in place of the standard ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="at least 2")
    parser.add_argument("--json", type=Path, help="write every time and ratio to this file")
    options = parser.parse_args()
    cases = CASES
    if options.parameters is not None:
        cases = (Case(int(options.parameters), options.threads, options.rounds, 0.97),)

    load = os.getloadavg()[0]
    print(f"kernels {instruction_sets()[0]}, torch {torch.__version__}, load before the run {load:.2f}")
    if load > 0.5:
        print("other programs are running: expect wide spreads, and trust only the ratios")
    results = []
    for case in cases:
        times = measure(case)
        ratios = judge(case, times)
        report(case, times, ratios)
        results.append(
            {
                "case": asdict(case),
                "seconds": {n: t.seconds for n, t in times.items()},
                "ratios": list(map(asdict, ratios)),
            }
        )
    if options.json:
        options.json.write_text(json.dumps({"load": load, "results": results}, indent=1))


if __name__ == "__main__":
    main()
