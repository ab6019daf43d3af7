"""What can be measured, and the frame of registers in which a clock is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.floats.add import Add
from relay_eps_hw.floats.divide import Divide
from relay_eps_hw.floats.multiply import Multiply, Operands, Square
from relay_eps_hw.floats.narrow import Narrow
from relay_eps_hw.floats.root import Root
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.floats.widen import Widen
from relay_eps_hw.lane.lane import Lane
from relay_eps_hw.lane.lanes import Lanes
from relay_eps_hw.lane.timing import DEEP
from relay_eps_hw.targets import Target
from relay_eps_hw.verilog import convert

UNITS: dict[str, Callable[[int | None, Target], FloatUnit]] = {
    "add": lambda depth, target: Add(depth=depth),
    "add_non_negative": lambda depth, target: Add(depth=depth, non_negative=True),
    "multiply": lambda depth, target: Multiply(depth=depth, target=target),
    "scalar_multiply": lambda depth, target: Multiply(depth=depth, kind=Operands.SCALAR, target=target),
    "root_multiply": lambda depth, target: Multiply(depth=depth, kind=Operands.ROOT, target=target),
    "square": lambda depth, target: Square(depth=depth, target=target),
    "divide": lambda depth, target: Divide(depth=depth),
    "root": lambda depth, target: Root(depth=depth),
    "widen": lambda depth, target: Widen(depth=depth),
    "narrow": lambda depth, target: Narrow(depth=depth),
}


@dataclass(frozen=True)
class Design:
    """A design to be measured: its name, its latency in clocks, and what builds it for a target."""

    name: str
    latency: int
    build: Callable[[Target], Any]


def lanes_design(lanes: int) -> Design:
    """``lanes`` deep lanes with all that is around them; raises ValueError for a number that is not supported."""

    def build(target: Target) -> Lanes:
        return Lanes(lanes, lambda: Lane(DEEP, target=target))

    return Design(f"{lanes} lane{'s' if lanes > 1 else ''}", build(Target.GENERIC).latency, build)


def unit_design(name: str, depth: int | None = None) -> Design:
    """The unit called ``name``; raises ValueError for one that there is not, with those there are."""
    if name not in UNITS:
        raise ValueError(f"there is no unit {name!r}: use one of {', '.join(UNITS)}")
    latency = UNITS[name](depth, Target.GENERIC).latency
    return Design(f"{name} d{latency}", latency, lambda target: UNITS[name](depth, target))


def bare(design: Design) -> str:
    """The Verilog of the design alone, as the module ``top``: for its area."""
    component = design.build(Target.GENERIC)
    return convert(component, "top", [port for _, _, port in component.signature.flatten(component)])


def framed(design: Design) -> str:
    """The Verilog of the design between registers, as the module ``top``: for its clock, which pins would limit."""
    frame = _Frame(design.build(Target.ECP5))
    return convert(frame, "top", [frame.serial_in, frame.serial_out])


class _Frame(wiring.Component):
    """All inputs from one shift register, all outputs through another: nothing is optimised away, two pins are used."""

    serial_in: In(1)
    serial_out: Out(1)

    def __init__(self, design: Any) -> None:
        self._design = design
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.design = self._design
        inputs, outputs = [], []
        for _, member, port in self._design.signature.flatten(self._design):
            value = port.as_value() if hasattr(port, "as_value") else port
            (inputs if member.flow is In else outputs).append(value)
        arriving = Signal(sum(len(value) for value in inputs), reset_less=True)
        applied = Signal.like(arriving, reset_less=True)
        m.d.sync += [arriving.eq(Cat(self.serial_in, arriving)), applied.eq(arriving)]
        m.d.comb += Cat(*inputs).eq(applied)
        result = Signal(sum(len(value) for value in outputs), reset_less=True)
        leaving = Signal.like(result, reset_less=True)
        turn = Signal(8)
        m.d.sync += [
            result.eq(Cat(*outputs)),
            turn.eq(turn + 1),
            leaving.eq(Mux(turn == 0, result, leaving.rotate_right(1))),
        ]
        m.d.comb += self.serial_out.eq(leaving[0])
        return m
