"""Speed of the EPS core in simulation, beside the limit of its lanes and ports, and beside the model of it.

Batches of independent layers on a memory of 100 clocks latency: clocks from the first to the last beat of data, told by
the bursts on the ports; descriptors and records are no data. A simulation, no hardware.

    python benchmarks/core.py                      # everything: about half an hour
    python benchmarks/core.py --quick              # one arrangement for each number of lanes, 4 Ki elements
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.table import print_table
from relay_eps.fpga.batch import Descriptor, decode, encode
from relay_eps.fpga.interface import DESCRIPTOR_SIZE, RECORD_SIZE, STREAMS, State
from relay_eps.fpga.interface import Opcode as HostOpcode
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.top import core_verilog
from relay_eps_hw.interface.codes import Opcode
from relay_eps_hw.interface.descriptors import ALIGNMENT
from relay_eps_hw.lane.timing import DEEP, SHALLOW, Depths
from relay_eps_hw.throughput import Estimate, Memory, Work, estimate
from relay_eps_sim.core import MemoryModel, SimulatedCore

#: Every stream, the descriptors and the records have memory of their own, so many bytes apart.
APART = 1 << 32
DATA = 3 * APART
SCALARS = dict.fromkeys(("scale", "b1", "c1", "b2", "c2", "r2", "eps", "k", "s"), 0.5)


@dataclass(frozen=True)
class Measured:
    """What the bursts of a batch say.

    Attributes:
        clocks: from the first to the last beat of data, both counted.
        bytes_per_parameter: of data, both directions; what is read is whole beats.
        gaps: clocks without a beat between a descriptor's last read and the next one's first; negative: they overlap.
    """

    clocks: int
    bytes_per_parameter: float
    gaps: tuple[int, ...]


class Bench:
    """One simulated core, which runs batches as `Work` describes them."""

    def __init__(self, config: CoreConfig, depths: Depths = SHALLOW) -> None:
        self.config = config
        self.sim = SimulatedCore(config, core_verilog(config, depths=depths))

    def measure(self, work: Work, memory: Memory, *, same_layer: bool = False) -> Measured:
        """Run a batch, on layers of their own or all on one; AssertionError where anything goes wrong in it."""
        log, stride = self.log(work, memory, same_layer=same_layer)
        log = log[log["address"] >= DATA]
        beat = self.config.beat_bytes
        reads = log[~log["is_write"]]
        moved = int(log["strobes"].sum()) + beat * int(reads["beats"].sum())
        return Measured(
            clocks=int(log["last"].max() - log["first"].min()) + 1,
            bytes_per_parameter=moved / (work.length * work.descriptors),
            gaps=_gaps(reads, work, stride),
        )

    def log(self, work: Work, memory: Memory, *, same_layer: bool = False) -> tuple[NDArray[np.void], int]:
        """The bursts of a batch, and the bytes from layer to layer; 0 for one layer."""
        stride = 0 if same_layer else -(-4 * work.length // ALIGNMENT) * ALIGNMENT
        batch = [_descriptor(work, number, number * stride) for number in range(work.descriptors)]
        data = max(work.descriptors * stride, -(-4 * work.length // ALIGNMENT) * ALIGNMENT)
        regions = [
            np.zeros(size, np.uint8)
            for size in (len(batch) * DESCRIPTOR_SIZE, len(batch) * RECORD_SIZE, *(data for _ in STREAMS))
        ]
        regions[0][:] = encode(batch).reshape(-1)
        for place, region in enumerate(regions):
            self.sim.attach((place + 1) * APART, region)
        self.sim.configure(MemoryModel(latency=memory.latency, shared=memory.is_shared))
        self.sim.clear_log()
        self.sim.start(APART, len(batch), 2 * APART)
        self.sim.finish(100 * (work.rows(self.config.lanes) + 1000) * len(batch))
        self.sim.check()
        if self.sim.stray or any(record.state is not State.DONE for record in decode(regions[1], len(batch))):
            raise AssertionError(f"{work} on {self.config} was not done")
        self.sim.clock(10)
        log = self.sim.bursts()
        self.sim.detach()
        return log, stride

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.sim.close()


def _descriptor(work: Work, number: int, offset: int) -> Descriptor:
    streams = [name for name in STREAMS if name != "wire" or work.wire_format is not None]
    return Descriptor(
        HostOpcode(int(work.operation)),
        length=work.length,
        tag=number,
        first=work.first,
        g_format=work.g_format,
        wire_format=work.wire_format or 0,
        addresses={name: DATA + STREAMS.index(name) * APART + offset for name in streams},
        scalars=SCALARS,
    )


def _gaps(reads: NDArray[np.void], work: Work, stride: int) -> tuple[int, ...]:
    """Between the reads of one descriptor and of the next; a stream's bursts come in the order of the descriptors."""
    first = np.full(work.descriptors, np.iinfo(np.int64).max)
    last = np.zeros(work.descriptors, np.int64)
    for name in work.reads:
        own = reads[reads["address"] // APART == STREAMS.index(name) + 3]
        own = own[np.argsort(own["asked"], kind="stable")]
        whose = np.arange(len(own)) * work.descriptors // len(own)
        np.minimum.at(first, whose, own["first"])
        np.maximum.at(last, whose, own["last"])
    return tuple((first[1:] - last[:-1] - 1).tolist())


@dataclass(frozen=True)
class Case:
    """A batch to be measured, and why: ``kind`` is one of `KINDS`."""

    kind: str
    name: str
    work: Work
    memory: Memory
    same_layer: bool = False


@dataclass(frozen=True)
class Row:
    """A case on a core: what was measured, beside the model.

    Attributes:
        core: lanes, ports and bytes of a beat, in words.
        depths: of the lanes.
        gap: the longest, in clocks; None for one operation alone.
    """

    core: str
    depths: str
    case: Case
    clocks: int
    bytes_per_parameter: float
    gap: int | None
    model: Estimate

    @property
    def share(self) -> float:
        """Of the limit's speed."""
        return self.model.limit / self.clocks

    @property
    def error(self) -> float:
        """Of the model's clocks."""
        return self.model.clocks / self.clocks - 1

    @property
    def missed(self) -> list[str]:
        """What is wanted, and is not so."""
        case = self.case
        least = WANTED_SHARE.get(case.work.length, 0.0) if case.kind == "batch" else 0.0
        wanted = {
            f"share >= {least:.0%}": self.share >= least,
            f"gap < {WANTED_GAP}": case.kind not in ("gap", "same layer") or (self.gap or 0) < WANTED_GAP,
            f"{self.model.bytes_per_parameter} bytes": self.bytes_per_parameter == self.model.bytes_per_parameter,
            f"model within {WANTED_ERROR:.0%}": case.kind in REPORTED or abs(self.error) <= WANTED_ERROR,
        }
        return [name for name, holds in wanted.items() if not holds]


WANTED_SHARE = {65536: 0.97, 4096: 0.90}
WANTED_GAP = 20
WANTED_ERROR = 0.05
LATENCY = 100
DESCRIPTORS = 32
#: Of layers of 64 Ki: half a million elements show as much as two million.
DESCRIPTORS_OF_LONG = 8
KINDS = {
    "batch": "batches of layers of their own",
    "alone": "one operation alone",
    "bytes": "bytes of every operation and format",
    "gap": "gaps between layers of their own, 4 Ki elements a lane",
    "same layer": "gaps on the same layer again, 4 Ki elements a lane",
    "short, same layer": "short layers again and again",
    "length": "fold and apply by the layers' length",
}
#: No target: how these wait for each other is not modelled.
REPORTED = ("short, same layer",)
OPERATIONS: dict[str, Work] = {
    "fold": Work(Opcode.FOLD, 1),
    "fold, bf16": Work(Opcode.FOLD, 1, g_format=1),
    "apply": Work(Opcode.APPLY, 1),
    "apply, bf16 wire": Work(Opcode.APPLY, 1, wire_format=1),
    "fold and apply": Work(Opcode.FOLD_APPLY, 1),
    "fold and apply, bf16 both": Work(Opcode.FOLD_APPLY, 1, g_format=1, wire_format=1),
    "accumulate first": Work(Opcode.ACCUMULATE, 1, first=True),
    "accumulate first, bf16": Work(Opcode.ACCUMULATE, 1, first=True, g_format=1),
    "accumulate later": Work(Opcode.ACCUMULATE, 1),
    "accumulate later, bf16": Work(Opcode.ACCUMULATE, 1, g_format=1),
    "fetch, bf16": Work(Opcode.FETCH, 1, wire_format=1),
}
MAIN = ("fold", "apply", "fold and apply", "fold and apply, bf16 both")
INDEPENDENT, SHARED = Memory(LATENCY), Memory(LATENCY, is_shared=True)
#: Beats for each number of lanes; every arrangement of ports has each of them.
CORES = [
    CoreConfig(lanes, ports, beat_bytes)
    for lanes, beat_bytes in ((1, 8), (4, 16), (4, 64), (16, 64))
    for ports in (1, 2, 4, 5)
]
FIRST = (CoreConfig(1, 4, 8), CoreConfig(4, 4, 16), CoreConfig(16, 5, 64))


def cases(config: CoreConfig, *, quick: bool) -> Iterator[Case]:
    """What is measured on a core."""
    lengths = (4096,) if quick else (4096, 65536)
    for name in MAIN:
        work = OPERATIONS[name]
        for memory in (INDEPENDENT, SHARED):
            for length in lengths:
                count = DESCRIPTORS if length == 4096 else DESCRIPTORS_OF_LONG
                yield Case("batch", name, replace(work, length=length, descriptors=count), memory)
            yield Case("alone", name, replace(work, length=4096), memory)
    if config not in FIRST:
        return
    for name, work in OPERATIONS.items():
        yield Case("bytes", name, replace(work, length=4096, descriptors=4), INDEPENDENT)
    for name in MAIN:
        work = replace(OPERATIONS[name], length=4096 * config.lanes, descriptors=4 if quick else 8)
        yield Case("gap", name, work, INDEPENDENT)
        yield Case("same layer", name, work, INDEPENDENT, same_layer=True)
        for length in (64, 1024):
            short = replace(work, length=length, descriptors=DESCRIPTORS)
            yield Case("short, same layer", name, short, INDEPENDENT, same_layer=True)
    for power in range(6, 17):
        work = replace(OPERATIONS["fold and apply"], length=1 << power, descriptors=DESCRIPTORS if power < 15 else 8)
        yield Case("length", "fold and apply", work, INDEPENDENT)


def measure(configs: list[CoreConfig], *, quick: bool, deep: bool = False) -> Iterator[Row]:
    """All cases on these cores; each is compiled first, unless it was before."""
    for config in configs:
        with Bench(config, DEEP if deep else SHALLOW) as bench:
            for case in cases(config, quick=quick):
                found = bench.measure(case.work, case.memory, same_layer=case.same_layer)
                yield Row(
                    core=describe(config),
                    depths="deep" if deep else "shallow",
                    case=case,
                    clocks=found.clocks,
                    bytes_per_parameter=found.bytes_per_parameter,
                    gap=max(found.gaps, default=None),
                    model=estimate(config, case.work, case.memory),
                )


def describe(config: CoreConfig) -> str:
    """A core in words."""
    lanes, ports = (f"{n} {what}{'s' if n > 1 else ''}" for n, what in ((config.lanes, "lane"), (config.ports, "port")))
    return f"{lanes}, {ports} of {config.beat_bytes} B"


def report(rows: list[Row]) -> None:
    """Print the tables, one a kind."""
    head = ("core", "operation", "elements", "memory", "clocks", "of limit", "model", "bound", "bytes", "gap", "")
    for kind, title in KINDS.items():
        chosen = [row for row in rows if row.case.kind == kind]
        if chosen:
            print_table(title, head, [_cells(row) for row in chosen])
    missed = sum(bool(row.missed) for row in rows)
    print(f"\n{len(rows)} measured, of which {missed} miss what is wanted" if missed else f"\nall {len(rows)} hold")


def _cells(row: Row) -> tuple[str, ...]:
    work = row.case.work
    return (
        row.core,
        row.case.name,
        f"{work.descriptors} x {work.length}",
        "shared" if row.case.memory.is_shared else "independent",
        f"{row.clocks:,}",
        f"{row.share:.1%}",
        f"{row.error:+.1%}",
        row.model.bound.value,
        f"{row.bytes_per_parameter:g}",
        "" if row.gap is None else f"{row.gap}",
        " ".join(f"MISSED {name}" for name in row.missed),
    )


def to_json(row: Row) -> dict[str, Any]:
    """A row as plain values."""
    return {
        **asdict(row),
        "case": {**asdict(row.case), "work": {**asdict(row.case.work), "operation": row.case.work.operation.name}},
        "model": {**asdict(row.model), "bound": row.model.bound.value},
        "share": row.share,
        "missed": row.missed,
    }


def plot(rows: list[Row], file: Path) -> None:
    """Draw the share of the limit over the layers' length; the same bytes for the same figures."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "relay-eps", "svg.fonttype": "none", "font.size": 11})
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    chosen = [row for row in rows if row.case.kind == "length"]
    for colour, core in zip(("#0072b2", "#d55e00", "#009e73"), dict.fromkeys(row.core for row in chosen), strict=False):
        own = [row for row in chosen if row.core == core]
        lengths = [row.case.work.length for row in own]
        axes.plot(lengths, [100 * row.model.share for row in own], color=colour, linewidth=1)
        axes.plot(lengths, [100 * row.share for row in own], "o", color=colour, markersize=5, label=core)
    axes.plot([], [], color="#475569", linewidth=1, label="the model")
    axes.set(
        title="Fold and apply, batches of layers of their own, in simulation",
        xlabel="elements of a layer",
        ylabel="% of the limit of lanes and ports",
        ylim=(0, 102),
    )
    axes.set_xscale("log", base=2)
    axes.legend(frameon=False, loc="lower right")
    axes.grid(color="#e2e8f0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three cores, and no layers of 64 Ki")
    parser.add_argument("--first", action="store_true", help="the same three cores, all of it")
    parser.add_argument("--core", type=int, nargs=3, help="only this one", metavar=("LANES", "PORTS", "BEAT_BYTES"))
    parser.add_argument("--deep", action="store_true", help="lanes as they are synthesised, slower to simulate")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw shares by length here, as SVG")
    options = parser.parse_args()
    configs = [CoreConfig(*options.core)] if options.core else [*FIRST] if options.quick or options.first else CORES
    rows = list(measure(configs, quick=options.quick, deep=options.deep))
    report(rows)
    if options.json:
        options.json.write_text(json.dumps([to_json(row) for row in rows], indent=2) + "\n")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
