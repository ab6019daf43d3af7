"""What can be measured, and the frame of registers in which a clock is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, ClockSignal, Instance, Module, Mux, ResetSignal, Signal
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
from relay_eps_hw.verilog import LANES_MODULE, convert, lanes_verilog, module

FRAME_MODULE = "frame"

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
class Port:
    """A port of a Verilog module, ``width`` bits."""

    name: str
    width: int
    is_input: bool


@dataclass(frozen=True)
class Design:
    """A design to be measured.

    Attributes:
        name: what it is called in a report.
        latency: clocks from operands to results.
        module: its Verilog module.
        ports: that module's ports but for clk and rst.
        verilog: its text for a target.
    """

    name: str
    latency: int
    module: str
    ports: tuple[Port, ...]
    verilog: Callable[[Target], str]


def lanes_design(lanes: int) -> Design:
    """``lanes`` deep lanes with all that is around them; raises ValueError for a number that is not supported."""
    array = Lanes(lanes, lambda: Lane(DEEP))
    name = f"{lanes} lane{'s' if lanes > 1 else ''}"
    return Design(name, array.latency, LANES_MODULE, _ports(array), lambda target: lanes_verilog(lanes, target=target))


def unit_design(name: str, depth: int | None = None) -> Design:
    """The unit called ``name``, as deep as it can be if ``depth`` is None.

    Raises ValueError for a unit that there is not, with those there are, and for a depth that is not supported.
    """
    if name not in UNITS:
        raise ValueError(f"there is no unit {name!r}: use one of {', '.join(UNITS)}")
    unit = UNITS[name](depth, Target.GENERIC)

    def verilog(target: Target) -> str:
        return module(UNITS[name](depth, target), name)

    return Design(name, unit.latency, name, _ports(unit), verilog)


def framed(design: Design) -> str:
    """The Verilog of the design between registers, as the module ``frame``: for its clock, which pins would limit."""
    frame = Frame(design)
    ports = [frame.serial_in, frame.serial_out]
    return "\n".join([convert(frame, FRAME_MODULE, ports), design.verilog(Target.ECP5)])


class Frame(wiring.Component):
    """All inputs from one shift register, all outputs through another: nothing is optimised away, two pins are used.

    The outputs are taken every 256 clocks, so that each has a register of its own to go to.

    Ports:
        serial_in (in, 1): enters the inputs' register.
        serial_out (out, 1): the lowest bit of the outputs' register.
    """

    def __init__(self, design: Design) -> None:
        self._design = design
        super().__init__({"serial_in": In(1), "serial_out": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        design = self._design
        signals = {port.name: Signal(port.width, name=port.name) for port in design.ports}
        inputs = Cat(signals[port.name] for port in design.ports if port.is_input)
        outputs = Cat(signals[port.name] for port in design.ports if not port.is_input)
        connections = {f"{'i' if port.is_input else 'o'}_{port.name}": signals[port.name] for port in design.ports}
        m.submodules.design = Instance(design.module, i_clk=ClockSignal(), i_rst=ResetSignal(), **connections)

        arriving = Signal(len(inputs), reset_less=True)
        applied = Signal(len(inputs), reset_less=True)
        m.d.sync += [arriving.eq(Cat(self.serial_in, arriving)), applied.eq(arriving)]
        m.d.comb += inputs.eq(applied)

        result = Signal(len(outputs), reset_less=True)
        leaving = Signal(len(outputs), reset_less=True)
        turn = Signal(8)
        m.d.sync += [
            result.eq(outputs),
            turn.eq(turn + 1),
            leaving.eq(Mux(turn == 0, result, leaving.rotate_right(1))),
        ]
        m.d.comb += self.serial_out.eq(leaving[0])
        return m


def _ports(component: Any) -> tuple[Port, ...]:
    return tuple(
        Port("__".join(map(str, path)), len(getattr(port, "as_value", lambda port=port: port)()), member.flow is In)
        for path, member, port in component.signature.flatten(component)
    )
