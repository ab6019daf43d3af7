"""Multiplication, general and of operands of which more is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats import finish
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.finish import Raw
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.pipeline import Pipeline, carried
from relay_eps_hw.floats.product import product
from relay_eps_hw.floats.shift import leading_zeros
from relay_eps_hw.floats.unit import FloatUnit, check_format
from relay_eps_hw.targets import Target, check_target

#: Steps before `finish`.
BEFORE = 4
#: What is carried beside the product.
FLAGS = ("sign", "nan", "inf", "zero")


class Operands(Enum):
    """What is known of a multiplication's operands. With others than promised the result holds no meaning."""

    #: Nothing.
    GENERAL = "general"
    #: b is +0, or normal of either sign.
    SCALAR = "scalar"
    #: a is a square root's result: NaN, +infinity, +0, or normal and positive; b is +0, or normal and positive.
    ROOT = "root"


@dataclass(frozen=True)
class _Unpacked:
    """What the first step finds in the operands.

    Attributes:
        a, b: significands. They are one object for a square.
        exponents (exponent + 1 bits): the sum of the stored exponents, 1 for a subnormal; any sum for a zero.
        counted: the significand whose leading zeros are those of the product or one less; None where no product moves
            up: none is normal that has a subnormal operand.
        sign, nan, inf, zero (1): of the result; nan, inf and zero each take precedence over the next.
    """

    a: Value
    b: Value
    exponents: Value
    counted: Value | None
    sign: Value
    nan: Value
    inf: Value
    zero: Value


class _Product(FloatUnit, ABC):
    """The steps that all multiplications share.

    A subnormal operand is not normalised before the product. Its leading zeros are counted beside it, and one shifter
    after it moves the product to where it is normal, or subnormal, or gone: up by the leading zeros, but no further
    than brings the exponent to its least. The shifter only moves down: the product enters it as far up as it could
    have to go.

    Steps:

    1. see which operands are special; add the exponents
    2. multiply, first part; count leading zeros; take the bias off the exponent
    3. multiply, second part; the exponent if the product were normal
    4. the sum of both parts; how far down it goes, and the exponent that it then has
    5. and on: `finish.finish`
    """

    #: How faults are named.
    NAME: str

    def __init__(
        self,
        fmt: FloatFormat,
        operands: int,
        *,
        normalises: bool,
        depth: int | None,
        target: Target,
        faults: Faults | None,
    ) -> None:
        self.fmt = check_format(fmt)
        self.target = check_target(target)
        self._normalises = normalises
        #: Bits of a distance: further down than they can tell, all of a product from 1 to under 4 is lost.
        self._bits = (fmt.fraction + 2).bit_length()
        steps = BEFORE + finish.steps(self._bits + 1 if normalises else self._bits)
        super().__init__((fmt.width,) * operands, fmt.width, (1,) * steps, depth, faults)

    @abstractmethod
    def _unpack(self) -> _Unpacked:
        """What is known of the operands in step 1."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fmt = self.fmt
        p = self.pipeline(m)
        parts = product(m, p, fmt.precision, self.target)
        u = self._unpack()
        counted = {} if u.counted is None else {"counted": u.counted}
        flags = {"sign": u.sign, "nan": u.nan, "inf": u.inf, "zero": u.zero}
        s = p.cut(**parts.first(u.a, u.b), exponents=u.exponents, **counted, **flags)

        # How far up the product may go; two's complement, and negative if it has to go down.
        most = _less_half(s.exponents)
        most = Cat(most, most[-1].replicate(max(self._bits + 1 - len(most), 0)))
        zeros = {} if u.counted is None else {"zeros": leading_zeros(p, s.counted)}
        s = p.cut(**parts.second(s), most=most, **zeros, **carried(s, FLAGS))

        # One less than the stored exponent of a product from 1 to under 2, were it normal.
        most = s.most.as_signed()
        normal = (most - s.zeros)[: len(most) + 1] if self._normalises else s.most
        up = {"zeros": s.zeros} if self._normalises else {}
        s = p.cut(**parts.third(s), normal=normal, most=most, **up, **carried(s, FLAGS))

        too_small = s.normal[-1]
        too_small = fault(self.faults, f"{self.NAME}.subnormal-edge", too_small, too_small & ~s.normal[1:].all())
        nothing = too_small | s.zero
        s = p.cut(
            total=parts.total(s),
            amount=self._from_above(s, too_small) if self._normalises else self._in_place(s),
            exponent=Mux(nothing, 0, s.normal[: fmt.exponent + 1]),
            **carried(s, ("sign", "nan", "inf")),
        )
        return self._round(m, p, s)

    def _in_place(self, s: SimpleNamespace) -> Value:
        """How far down from its place a product goes."""
        bits = self._bits
        low, high = s.most[:bits], s.most[bits:]
        beyond = ~high.all() | ~low.any()
        # Written bit by bit: as a subtraction it would take a carry chain of its own.
        down = Cat(bit ^ low[:place].any() for place, bit in enumerate(low))
        return Mux(s.most[-1], down | beyond.replicate(bits), 0)

    def _from_above(self, s: SimpleNamespace, too_small: Value) -> Value:
        """How far down from ``2**bits - 1`` above its place a product goes."""
        bits = self._bits
        below = s.most[-1]
        beyond = below & ~s.most[bits:].all()
        up = Mux(too_small, s.most[:bits], s.zeros[:bits])
        return Cat(~up | beyond.replicate(bits), below)

    def _round(self, m: Module, p: Pipeline, s: SimpleNamespace) -> Module:
        above = (1 << self._bits) - 1 if self._normalises else 0
        lost = max(self.fmt.fraction - 1 - above, 0)
        value = Cat(Const(0, above - (self.fmt.fraction - 1) + lost), s.total[lost:])
        raw = Raw(value, s.amount, s.total[:lost].any(), s.exponent, s.sign, s.nan, s.inf)
        m.d.comb += self.o.eq(finish.finish(p, self.fmt, raw, self.faults, self.NAME))
        p.finish()
        return m


def _less_half(exponents: Value) -> Value:
    """The sum of two stored exponents, less half of how many they can be; two's complement, one bit longer."""
    low, top = exponents[:-2], exponents[-2:]
    return Cat(low, ~top[0], top[0] == top[1], ~top.any())


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
        depth: int | None = None,
        kind: Operands = Operands.GENERAL,
        target: Target = Target.GENERIC,
        faults: Faults | None = None,
    ) -> None:
        self.kind = _check_kind(kind)
        normalises = kind in (Operands.GENERAL, Operands.SCALAR)
        super().__init__(fmt, 2, normalises=normalises, depth=depth, target=target, faults=faults)

    def _unpack(self) -> _Unpacked:
        a, b = Fields(self.fmt, self.a), Fields(self.fmt, self.b)
        if self.kind is Operands.GENERAL:
            nan = a.is_nan | b.is_nan
            inf_by_zero = a.is_inf & b.is_zero | a.is_zero & b.is_inf
            inf = a.is_inf | b.is_inf
            zero = a.is_zero | b.is_zero
            # The product of two subnormal numbers never goes up.
            counted = Mux(a.hidden, b.significand, a.significand)
        else:
            nan = a.is_nan
            inf_by_zero = a.is_inf & ~b.hidden
            inf = a.is_inf
            zero = a.is_zero | ~b.hidden
            counted = a.significand
        is_root = self.kind is Operands.ROOT
        return _Unpacked(
            a=a.significand,
            b=b.significand,
            exponents=(a.exponent if is_root else a.effective_exponent)
            + (b.effective_exponent if self.kind is Operands.GENERAL else b.exponent),
            counted=counted if self._normalises else None,
            sign=Const(0, 1) if is_root else a.sign ^ b.sign,
            nan=nan | fault(self.faults, "multiply.inf-times-zero", inf_by_zero, Const(0, 1)),
            inf=inf,
            zero=zero,
        )


def _check_kind(kind: object) -> Operands:
    """``kind`` itself; ValueError, with those that there are, unless it is one of `Operands`."""
    if not isinstance(kind, Operands):
        known = ", ".join(map(str, Operands))
        raise ValueError(f"{kind!r} is not a kind of operands: use one of {known}")
    return kind


class Square(_Product):
    """``o = a * a``, never negative. Steps as in `_Product`."""

    OPERANDS = ("a",)
    NAME = "square"

    def __init__(
        self,
        fmt: FloatFormat = FP32,
        *,
        depth: int | None = None,
        target: Target = Target.GENERIC,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(fmt, 1, normalises=False, depth=depth, target=target, faults=faults)

    def _unpack(self) -> _Unpacked:
        a = Fields(self.fmt, self.a)
        return _Unpacked(
            a=a.significand,
            b=a.significand,
            exponents=Cat(Const(0, 1), a.effective_exponent),
            counted=None,
            sign=Const(0, 1),
            nan=a.is_nan,
            inf=a.is_inf,
            zero=Const(0, 1),
        )
