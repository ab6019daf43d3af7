"""Time of a relay step against plain training with the same micro-batches, gradient accumulation and fused AdamW.

All contenders train their own copy of one model on the same mini-batch, in turns, so that a slow minute of the machine
hits them alike; ratios are medians over rounds of times in the same round. Beside the relay stands
`torch.utils.checkpoint` around every layer, the usual way to trade time for memory.

    python benchmarks/relay.py                    # LayerNorm MLP, 8 layers of 512, 2,048 samples in 4 micro-batches
    python benchmarks/relay.py --model gpt        # the byte-level GPT that `relay-eps train` trains
    python benchmarks/relay.py --rounds 60 --threads 1 --json relay.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.timing import Times, interleave, ratio
from relay_eps.models.gpt import VOCABULARY, Gpt, next_byte_loss
from relay_eps.models.gpt_config import GptConfig
from relay_eps.relay import Relay

#: What the project asks of the MLP at its standard size.
WANTED = 1.33

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A model and its mini-batch; ``batch`` samples in ``micro_batches`` equal parts."""

    model: str
    layers: int
    width: int
    batch: int
    micro_batches: int
    #: Positions of a sample; 0 for the MLP, whose samples are vectors.
    context: int = 0

    @property
    def micro_batch(self) -> int:
        return self.batch // self.micro_batches


CASES = {
    "mlp": Case("mlp", layers=8, width=512, batch=2048, micro_batches=4),
    "gpt": Case("gpt", layers=4, width=128, batch=32, micro_batches=4, context=128),
}


def make_model(case: Case) -> nn.Sequential:
    """The same weights each time; every child is a layer."""
    if case.model == "gpt":
        return Gpt(GptConfig(layers=case.layers, width=case.width, context=case.context))
    torch.manual_seed(0)
    width = case.width
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(case.layers))
    )


def make_batch(case: Case) -> tuple[Tensor, Tensor, Loss]:
    """Inputs, targets and the mean loss."""
    rng = torch.Generator().manual_seed(1)
    if case.model == "gpt":
        text = torch.randint(VOCABULARY, (case.batch, case.context + 1), generator=rng)
        return text[:, :-1], text[:, 1:], next_byte_loss
    shape = (case.batch, case.width)
    return torch.randn(shape, generator=rng), torch.randn(shape, generator=rng), nn.functional.mse_loss


def plain_step(case: Case, model: nn.Sequential, *, checkpointed: bool) -> Callable[[], None]:
    """Gradient accumulation over the micro-batches, then torch's fused AdamW."""
    inputs, targets, loss_fn = make_batch(case)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def forward(x: Tensor) -> Tensor:
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
        return x

    def step() -> None:
        optimizer.zero_grad()
        for x, y in zip(inputs.split(case.micro_batch), targets.split(case.micro_batch), strict=True):
            (loss_fn(forward(x), y) / case.micro_batches).backward()
        optimizer.step()

    return step


def measure(case: Case, rounds: int) -> dict[str, Times]:
    """Times of one mini-batch of each contender."""
    inputs, targets, loss_fn = make_batch(case)
    with Relay(make_model(case), micro_batch=case.micro_batch) as relay:
        return interleave(
            {
                "plain": plain_step(case, make_model(case), checkpointed=False),
                "relay": lambda: relay.step(inputs, targets, loss_fn),
                "torch.utils.checkpoint": plain_step(case, make_model(case), checkpointed=True),
            },
            rounds,
        )


def report(case: Case, times: dict[str, Times], rounds: int, *, judged: bool) -> None:
    plain = times["plain"]
    print(
        f"\n{case.model}, {case.layers} layers, width {case.width}, {case.batch} samples in {case.micro_batches} "
        f"micro-batches; {torch.get_num_threads()} threads, {rounds} rounds"
    )
    print(f"  {'one mini-batch':24} {'median':>10} {'spread':>8} {'over plain':>11}  quartiles of the ratio")
    for name, taken in times.items():
        low, high = ratio_quartiles(taken, plain)
        line = f"  {name:24} {1e3 * taken.median:7.1f} ms {taken.spread:8.1%} {ratio(taken, plain):11.3f}"
        print(line if taken is plain else f"{line}  {low:.3f} to {high:.3f}")
    if judged:
        found = ratio(times["relay"], plain)
        print(f"  relay over plain: {found:.3f}, wanted <= {WANTED}: {'holds' if found <= WANTED else 'MISSED'}")


def ratio_quartiles(over: Times, under: Times) -> tuple[float, float]:
    """The quartiles of ``over / under``, round by round."""
    paired = Times("ratio", tuple(a / b for a, b in zip(over.seconds, under.seconds, strict=True)))
    return paired.quartiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(CASES), default="mlp")
    parser.add_argument("--layers", type=int, help="layers of the MLP, blocks of the GPT")
    parser.add_argument("--width", type=int)
    parser.add_argument("--batch", type=int, help="samples in a mini-batch, a multiple of --micro-batches")
    parser.add_argument("--micro-batches", type=int)
    parser.add_argument("--threads", type=int, help="torch's threads (default: torch's own choice)")
    parser.add_argument("--rounds", type=int, default=25, help="at least 2")
    parser.add_argument("--json", type=Path, help="write every time to this file")
    options = parser.parse_args()
    standard = CASES[options.model]
    asked = {name: getattr(options, name) for name in ("layers", "width", "batch", "micro_batches")}
    case = replace(standard, **{name: value for name, value in asked.items() if value is not None})
    if case.batch % case.micro_batches:
        parser.error(f"--batch {case.batch} is not a multiple of --micro-batches {case.micro_batches}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)

    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, load before the run {load:.2f}")
    if load > 0.5:
        print("other programs are running: expect wide spreads, and trust only the ratios")
    times = measure(case, options.rounds)
    report(case, times, options.rounds, judged=case == CASES["mlp"])
    if options.json:
        found = {
            "case": asdict(case),
            "threads": torch.get_num_threads(),
            "load": load,
            "seconds": {name: taken.seconds for name, taken in times.items()},
            "over_plain": {name: ratio(taken, times["plain"]) for name, taken in times.items()},
        }
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
