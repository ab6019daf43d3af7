"""A lane without arithmetic: each output says which inputs it came from, to test what is around it."""

from __future__ import annotations

from dataclasses import replace

from amaranth.hdl import Module
from amaranth.lib import wiring

from relay_eps_hw.delay import DelayLine
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.lane.beat import lane_ports
from relay_eps_hw.lane.timing import Timing, lane_timing

#: For each output, the operand and the scalars that it is the exclusive or of.
SOURCES = {
    "m": ("m", ("b1", "c1")),
    "v": ("v", ("b2", "c2")),
    "p": ("p", ("scale", "k", "s")),
    "wire": ("g", ("r2", "eps")),
}
UNITS = ("widen", "multiply", "square", "root_multiply", "add", "add_non_negative", "root", "divide", "narrow")
SHORT = lane_timing(dict.fromkeys(UNITS, 1))
#: About as long as a deep lane.
LONG = lane_timing(dict.fromkeys(UNITS, 12))


class StandInLane(wiring.Component):
    """The ports and attributes of a lane; ``o_x`` is the exclusive or of its `SOURCES`, each sampled at its time.

    The formats, which are 0 for fp32, go into ``o_wire`` too.
    """

    def __init__(self, fmt: FloatFormat = FP32, timing: Timing = SHORT) -> None:
        self.fmt = fmt
        self.timing = replace(timing)
        super().__init__(lane_ports(fmt.width))

    def elaborate(self, platform: object) -> Module:
        m = Module()

        def delayed(value, clocks):
            line = DelayLine(len(value), clocks)
            m.submodules += line
            m.d.comb += line.i.eq(value)
            return line.o

        for name, (operand, scalars) in SOURCES.items():
            out = getattr(self.timing, name)
            value = delayed(getattr(self, operand), out)
            for scalar in scalars:
                value ^= delayed(getattr(self, scalar), out - self.timing.scalars[scalar])
            if name == "wire":
                value ^= delayed(self.g_format, out) ^ delayed(self.w_format, out - self.timing.w_format)
            m.d.comb += getattr(self, f"o_{name}").eq(value)
        top = delayed(self.g, self.timing.nonfinite)[self.fmt.fraction : -1]
        m.d.comb += self.nonfinite.eq(top.all())
        return m
