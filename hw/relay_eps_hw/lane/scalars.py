"""The scalars at the lanes' entry: whether they keep the contract, and how one datapath does every operation.

The lane always computes a fold and an apply. The other operations are that, with scalars and operands replaced by
values that change no bit::

    not first          b1 = b2 = 1            1*m is m
    apply              g = -0, scale = 1      c1*(-0) is -0, and m + -0 is m; c2*(+0) is +0, and v + 0 is v
    accumulate         scale = b1 = c1 = 1    1*m + 1*(g*1); where first, m = -0, and -0 + g is g
    fetch              as apply, with m = v = +0 and eps = k = s = 1: p*1 - 1*(0/(0*r2 + 1)) is p

So there is no multiplexer in the lane, and the lane need not know the operation.
"""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.formats import FloatFormat
from relay_eps_hw.lane.beat import SCALARS, SIGNED, Operation, scalars_layout


def outside_contract(fmt: FloatFormat, bits: Value, *, signed: bool) -> Value:
    """Whether a scalar is anything but +0 or normal, or negative where ``signed`` does not allow it."""
    value = Fields(fmt, bits)
    # Of all values with a zero exponent only +0 is allowed: -0 and subnormals have another bit set.
    zero_exponent_only = ~value.hidden & bits.any()
    not_finite = value.exponent.all()
    negative = 0 if signed else value.sign
    return zero_exponent_only | not_finite | negative


class ScalarEntry(wiring.Component):
    """Checks and replaces the scalars of an operation.

    Ports:
        operation (in, 3), first (in, 1), i (in): the operation and its scalars.
        o (out; a clock later): the scalars that make a fold and an apply of it.
        outside (out, 1; two clocks later): one of ``i`` was outside the contract.
        no_g, no_m, no_v (out, 1; in the clock of ``operation``): g is to enter as -0; m as -0; v, and m, as +0.
    """

    def __init__(self, fmt: FloatFormat, faults: Faults | None = None) -> None:
        self.fmt = fmt
        self.faults = faults
        layout = scalars_layout(fmt.width)
        super().__init__(
            {
                "operation": In(3),
                "first": In(1),
                "i": In(layout),
                "o": Out(layout),
                "outside": Out(1),
                "no_g": Out(1),
                "no_m": Out(1),
                "no_v": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        is_apply = self.operation == Operation.APPLY
        is_sum = self.operation == Operation.ACCUMULATE
        is_fetch = self.operation == Operation.FETCH
        folds = ~(is_apply | is_sum | is_fetch)
        m.d.comb += [
            self.no_g.eq(is_apply | is_fetch),
            self.no_m.eq(is_fetch | is_sum & self.first),
            self.no_v.eq(is_fetch),
        ]
        decays = folds & fault(self.faults, "scalars.decay-not-only-first", self.first, self.first | 1)
        is_one = {
            "scale": ~folds,
            "b1": ~decays,
            "b2": ~decays,
            "c1": is_sum,
            "eps": is_fetch,
            "k": is_fetch,
            "s": is_fetch,
        }
        for name in SCALARS:
            m.d.sync += self.o[name].eq(self.i[name])
            if name in is_one:
                with m.If(is_one[name]):
                    m.d.sync += self.o[name].eq(self.fmt.one)
        self._check(m)
        return m

    def _check(self, m: Module) -> None:
        outside = Signal(len(SCALARS))
        for bit, name in enumerate(SCALARS):
            signed = name in SIGNED
            if name == "scale":
                found = outside_contract(self.fmt, self.i[name], signed=True)
                wrong = outside_contract(self.fmt, self.i[name], signed=False)
                m.d.sync += outside[bit].eq(fault(self.faults, "scalars.negative-scale-refused", found, wrong))
            else:
                m.d.sync += outside[bit].eq(outside_contract(self.fmt, self.i[name], signed=signed))
        m.d.sync += self.outside.eq(outside.any())
