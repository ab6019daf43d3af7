"""Multiplication, general and of operands of which more is known."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats import finish
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.finish import Raw
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.product import Product
from relay_eps_hw.floats.shift import leading_zeros
from relay_eps_hw.floats.unit import FloatUnit, check_format
from relay_eps_hw.targets import Target


class Operands(Enum):
    """What is known of a multiplication's operands. With others than promised the result holds no meaning."""

    #: Nothing.
    GENERAL = "general"
    #: b is +0, or normal of either sign.
    SCALAR = "scalar"
    #: a is a square root's result: NaN, +infinity, +0, or normal and positive; b is +0, or normal and positive.
    ROOT = "root"


class _Product(FloatUnit):
    """The steps that all multiplications share.

    A subnormal operand is not normalised before the product. Its leading zeros are counted beside it, and one shifter
    after it moves the product to where it is normal, or subnormal, or gone. That shifter moves down only: where a
    subnormal operand may have a normal product, the product enters it as far up as that could ask for.

    Steps:

    1. see which operands are special; add the exponents
    2. partial products; count leading zeros; take the bias off
    3. the multipliers' registers; the exponent of the normal product, and how far down a subnormal one has to go
    4. the sum of the partial products; how far down it goes, and the exponent that it then has
    5. to 9. `finish.finish`
    """

    #: How faults are named.
    NAME: str

    def __init__(
        self,
        fmt: FloatFormat,
        operands: int,
        *,
        normalises: bool,
        depth: int,
        target: Target,
        faults: Faults | None,
    ) -> None:
        self.fmt = check_format(fmt)
        self.target = target
        #: How far up a subnormal operand's product may have to go.
        self._up = fmt.precision - 1 if normalises else 0
        super().__init__((fmt.width,) * operands, fmt.width, (1,) * (4 + finish.STEPS), depth, faults)

    def _unpack(self) -> dict[str, Value]:
        """Step 1: significands a and b; the sum of the stored exponents; what leading zeros are counted of; flags."""
        raise NotImplementedError

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fmt = self.fmt
        p = self.pipeline(m)
        product = Product(fmt.precision)
        s = p.cut(**self._unpack())

        # The stored exponent of a product from 1 to under 2, were it normal; two's complement.
        exponent = (s.exponents - fmt.bias)[: fmt.exponent + 2]
        zeros = leading_zeros(s.counted) if self._up else Const(0, 1)
        s = p.cut(**product.partial(s.a, s.b), exponent=exponent, zeros=zeros, **_flags(s))

        normal = (s.exponent.as_signed() - s.zeros)[: fmt.exponent + 3]
        down = (self._up + 1 - s.exponent.as_signed())[: fmt.exponent + 2]
        s = p.cut(**product.hold(s), normal=normal, down=down, rest=(self._up - s.zeros)[: len(s.zeros)], **_flags(s))

        total = product.total(s)
        too_small = s.normal[-1] | ~s.normal.any()
        too_small = fault(self.faults, f"{self.NAME}.subnormal-edge", too_small, s.normal[-1])
        # A distance at which all bits are lost need not be known exactly.
        bits = (self._up + fmt.fraction + 3).bit_length()
        beyond = s.down[bits:].any()
        amount = Mux(too_small, s.down[:bits] | beyond.replicate(bits), s.rest)
        s = p.cut(
            total=total,
            amount=amount[:bits],
            exponent=Mux(too_small, 1, s.normal)[: fmt.exponent + 1],
            **_flags(s),
        )
        return self._finish(m, p, s)

    def _finish(self, m: Module, p: object, s: SimpleNamespace) -> Module:
        lost = self.fmt.fraction - 1
        # Entering `up` places above its own place leaves that many zeros below it.
        value = Cat(Const(0, max(self._up - lost, 0)), s.total[max(lost - self._up, 0) :])
        sticky = s.total[: max(lost - self._up, 0)].any()
        raw = Raw(value, s.amount, sticky, s.exponent, s.sign, s.nan, s.inf)
        m.d.comb += self.o.eq(finish.finish(p, self.fmt, raw, self.faults, self.NAME))
        p.finish()
        return m


def _flags(s: SimpleNamespace) -> dict[str, Value]:
    return {"sign": s.sign, "nan": s.nan, "inf": s.inf}


def _effective(value: Fields) -> Value:
    """The stored exponent, 1 for subnormals and zeros."""
    return Cat(value.exponent[0] | ~value.hidden, value.exponent[1:])


class Multiply(_Product):
    """``o = a * b``. Steps as in `_Product`.

    Args:
        fmt: the format of a, b and o.
        kind: what is known of a and b.
        target: what the product is made of.
    """

    OPERANDS = ("a", "b")
    NAME = "multiply"

    def __init__(
        self,
        fmt: FloatFormat = FP32,
        *,
        depth: int,
        kind: Operands = Operands.GENERAL,
        target: Target = Target.GENERIC,
        faults: Faults | None = None,
    ) -> None:
        self.kind = kind
        super().__init__(fmt, 2, normalises=kind is not Operands.ROOT, depth=depth, target=target, faults=faults)

    def _unpack(self) -> dict[str, Value]:
        a, b = Fields(self.fmt, self.a), Fields(self.fmt, self.b)
        if self.kind is Operands.GENERAL:
            nan = a.is_nan | b.is_nan | a.is_inf & b.is_zero | a.is_zero & b.is_inf
            inf = a.is_inf | b.is_inf
            counted = Mux(a.hidden, b.significand, a.significand)
            exponents = _effective(a) + _effective(b)
        else:
            nan = a.is_nan | fault(self.faults, "multiply.inf-times-zero", a.is_inf & ~b.hidden, Const(0))
            inf = a.is_inf
            counted = a.significand
            # A zero's exponent does not matter, and b is never subnormal; nor is a root.
            exponents = (a.exponent if self.kind is Operands.ROOT else _effective(a)) + b.exponent
        sign = Const(0) if self.kind is Operands.ROOT else a.sign ^ b.sign
        return {
            "a": a.significand,
            "b": b.significand,
            "exponents": exponents,
            "counted": counted,
            "sign": sign,
            "nan": nan,
            "inf": inf,
        }


class Square(_Product):
    """``o = a * a``, never negative. A subnormal a has no square. Steps as in `_Product`."""

    OPERANDS = ("a",)
    NAME = "square"

    def __init__(
        self,
        fmt: FloatFormat = FP32,
        *,
        depth: int,
        target: Target = Target.GENERIC,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(fmt, 1, normalises=False, depth=depth, target=target, faults=faults)

    def _unpack(self) -> dict[str, Value]:
        a = Fields(self.fmt, self.a)
        return {
            "a": a.significand,
            "b": a.significand,
            "exponents": Cat(Const(0, 1), _effective(a)),
            "counted": Const(0, 1),
            "sign": Const(0),
            "nan": a.is_nan,
            "inf": a.is_inf,
        }
