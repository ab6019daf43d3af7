"""The AdamA lane: a fold and an apply of one element each clock, in the order of operations of the contract.

::

    gs = widen(g) * scale
    m' = b1*m + c1*gs
    v' = b2*v + c2*(gs*gs)
    d  = sqrt(v') * r2 + eps
    p' = p*k - s*(m'/d)
    wire = narrow(p')

Each line is a chain of float units; delay lines keep the operands abreast. Nothing stalls: an element that enters
leaves `Lane.timing` clocks later, and every clock takes one. What is true of the operands makes the units smaller: a
scalar is +0 or normal, so it needs no normalising; a square root is never subnormal; squares, v, the root and eps are
never negative, so two of the adders never cancel.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Value
from amaranth.lib import wiring

from relay_eps_hw.delay import DelayLine
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.add import Add
from relay_eps_hw.floats.divide import Divide
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.multiply import Multiply, Operands, Square
from relay_eps_hw.floats.narrow import Narrow
from relay_eps_hw.floats.root import Root
from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.floats.widen import Widen
from relay_eps_hw.lane.beat import SCALARS, lane_ports
from relay_eps_hw.lane.timing import Depths, lane_timing
from relay_eps_hw.targets import Target

#: A unit that has each of the `Depths`.
_UNIT_OF_DEPTH = {
    "widen": "widen_g",
    "multiply": "scale_g",
    "square": "square_gs",
    "root_multiply": "r2_root",
    "add": "new_m",
    "add_non_negative": "new_v",
    "root": "root_v",
    "divide": "quotient",
    "narrow": "narrow_p",
}


class Lane(wiring.Component):
    """One element a clock through fold and apply.

    Ports; ``timing`` says in which clock after an element's entry each is sampled or there:
        g, m, v, p (in, 32): the element. g_format (in, 2): the `WireFormat` of g.
        scale, b1, c1, b2, c2, r2, eps, k, s (in, 32): the element's scalars, each in its own clock.
        w_format (in, 2): the `WireFormat` of the wire copy.
        nonfinite (out, 1): g was infinite or NaN.
        o_m, o_v, o_p, o_wire (out, 32): the results.

    Args:
        depths: registers in each unit; ValueError from the unit for one that it does not have.
        target: what the multipliers are made of.
    """

    fmt: FloatFormat = FP32

    def __init__(self, depths: Depths, *, target: Target = Target.GENERIC, faults: Faults | None = None) -> None:
        if not isinstance(depths, Depths):
            raise ValueError(f"{depths!r} are no depths: use DEEP, SHALLOW or Depths(...)")
        self.depths = depths
        self.faults = faults
        super().__init__(lane_ports(self.fmt.width))

        def multiply(kind: Operands = Operands.SCALAR) -> Multiply:
            depth = depths.root_multiply if kind is Operands.ROOT else depths.multiply
            return Multiply(FP32, depth=depth, kind=kind, target=target, faults=faults)

        self._units: dict[str, FloatUnit] = {
            "widen_g": Widen(depth=depths.widen, faults=faults),
            "scale_g": multiply(),
            "b1_m": multiply(),
            "c1_gs": multiply(),
            "new_m": Add(FP32, depth=depths.add, faults=faults),
            "square_gs": Square(FP32, depth=depths.square, target=target, faults=faults),
            "b2_v": multiply(),
            "c2_square": multiply(),
            "new_v": Add(FP32, depth=depths.add_non_negative, non_negative=True, faults=faults),
            "root_v": Root(FP32, depth=depths.root, faults=faults),
            "r2_root": multiply(Operands.ROOT),
            "divisor": Add(FP32, depth=depths.add_non_negative, non_negative=True, faults=faults),
            "quotient": Divide(FP32, depth=depths.divide, positive_divisor=True, faults=faults),
            "s_quotient": multiply(),
            "k_p": multiply(),
            "new_p": Add(FP32, depth=depths.add, faults=faults),
            "narrow_p": Narrow(depth=depths.narrow, faults=faults),
        }
        self.timing = lane_timing({name: self._units[unit].latency for name, unit in _UNIT_OF_DEPTH.items()})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        chain = _Chain(m, self._units)
        scalar = {name: _Timed(getattr(self, name), self.timing.scalars[name]) for name in SCALARS}
        entry = {name: _Timed(getattr(self, name), 0) for name in ("g", "m", "v", "p", "g_format")}

        # The gradient.
        wide = chain.apply("widen_g", a=entry["g"], format=entry["g_format"])
        m.d.comb += self.nonfinite.eq(wide.value[FP32.fraction : -1].all())
        gs = chain.apply("scale_g", a=wide, b=scalar["scale"])

        # m' = b1*m + c1*gs
        grown_m = chain.apply("c1_gs", a=gs, b=scalar["c1"])
        kept_m = chain.apply("b1_m", a=chain.at(entry["m"], gs.clock), b=scalar["b1"])
        new_m = chain.apply("new_m", a=kept_m, b=grown_m)

        # v' = b2*v + c2*(gs*gs)
        square = chain.apply("square_gs", a=gs)
        grown_v = chain.apply("c2_square", a=square, b=scalar["c2"])
        kept_v = chain.apply("b2_v", a=chain.at(entry["v"], square.clock), b=scalar["b2"])
        new_v = chain.apply("new_v", a=kept_v, b=grown_v)

        # d = sqrt(v')*r2 + eps
        root = chain.apply("root_v", a=new_v)
        scaled_root = chain.apply("r2_root", a=root, b=scalar["r2"])
        divisor = chain.apply("divisor", a=scaled_root, b=scalar["eps"])

        # p' = p*k - s*(m'/d)
        quotient = chain.apply("quotient", a=chain.at(new_m, divisor.clock), b=divisor)
        step = chain.apply("s_quotient", a=quotient, b=scalar["s"])
        kept_p = chain.apply("k_p", a=chain.at(entry["p"], quotient.clock), b=scalar["k"])
        minus = fault(self.faults, "lane.step-added", ~step.value[-1], step.value[-1])
        new_p = chain.apply("new_p", a=kept_p, b=_Timed(Cat(step.value[:-1], minus), step.clock))
        wire = chain.apply("narrow_p", a=new_p, format=_Timed(self.w_format, self.timing.w_format))

        for name, result in {"m": new_m, "v": new_v, "p": new_p, "wire": wire}.items():
            assert result.clock == getattr(self.timing, name), f"{name} comes at {result.clock}"
            m.d.comb += getattr(self, f"o_{name}").eq(result.value)
        return m


class _Timed:
    """A value, and how many clocks after its element's entry it is there."""

    def __init__(self, value: Value, clock: int) -> None:
        self.value = value
        self.clock = clock


class _Chain:
    """Places the units of a lane, and checks that all operands of each come in the same clock."""

    def __init__(self, m: Module, units: dict[str, FloatUnit]) -> None:
        self._m = m
        self._units = units

    def apply(self, name: str, **operands: _Timed) -> _Timed:
        """The result of the unit called ``name``."""
        unit = self._units[name]
        self._m.submodules[name] = unit
        clocks = {operand.clock for operand in operands.values()}
        assert len(clocks) == 1, f"the operands of {name} come in the clocks {clocks}"
        for port, operand in operands.items():
            self._m.d.comb += getattr(unit, port).eq(operand.value)
        return _Timed(unit.o, clocks.pop() + unit.latency)

    def at(self, timed: _Timed, clock: int) -> _Timed:
        """The same value in a later clock."""
        line = DelayLine(len(timed.value), clock - timed.clock)
        self._m.submodules += line
        self._m.d.comb += line.i.eq(timed.value)
        return _Timed(line.o, clock)
