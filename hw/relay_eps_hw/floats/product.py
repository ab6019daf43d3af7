"""The product of two significands, over four steps of a pipeline, from what a device multiplies with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import SimpleNamespace

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal, Value

from relay_eps_hw.floats.pipeline import Pipeline
from relay_eps_hw.targets import Target

#: The unsigned width of the narrower operand of AMD's DSP blocks, and how far their sums are moved down from one block
#: to the next.
AMD_WIDTH = 17
#: The width of both operands of Lattice's MULT18X18D.
ECP5_WIDTH = 18


class Product(ABC):
    """``a * b``, unsigned, in four steps. The unit ends each of them with what else it carries.

    `first` to `third` are what is carried from these steps to the next, `total` is the product in the fourth.
    """

    @abstractmethod
    def first(self, a: Value, b: Value) -> dict[str, Value]:
        """What is carried from step 1, in which the operands are there."""

    @abstractmethod
    def second(self, s: SimpleNamespace) -> dict[str, Value]:
        """What is carried from step 2."""

    @abstractmethod
    def third(self, s: SimpleNamespace) -> dict[str, Value]:
        """What is carried from step 3."""

    @abstractmethod
    def total(self, s: SimpleNamespace) -> Value:
        """The product, in step 4; as wide as both operands together."""


def product(m: Module, p: Pipeline, width: int, target: Target) -> Product:
    """A product of operands of ``width`` bits in ``m``, that starts at the first step of ``p``.

    Raises ValueError for a width that the target's multipliers cannot be put together to.
    """
    return Ecp5Product(m, p, width) if target is Target.ECP5 else GenericProduct(width)


class GenericProduct(Product):
    """Two multiplications and an addition, as two of AMD's DSP blocks do them, one a clock after the other.

    1. the operands
    2. a times the low part of b
    3. a times the high part of b
    4. the latter, and the top of the former: the sum in the second block

    A register after each is one that the blocks have. They work on signed numbers, and tools see the addition in them
    only where it is written so.
    """

    def __init__(self, width: int) -> None:
        self._width = 2 * width
        self._split = width > AMD_WIDTH

    def first(self, a: Value, b: Value) -> dict[str, Value]:
        return {"a": a, "b": b}

    def second(self, s: SimpleNamespace) -> dict[str, Value]:
        if not self._split:
            return {"low": s.a * s.b}
        return {"low": s.a * s.b[:AMD_WIDTH], "late_a": s.a, "late_b": s.b[AMD_WIDTH:]}

    def third(self, s: SimpleNamespace) -> dict[str, Value]:
        if not self._split:
            return {"low": s.low}
        return {"low": s.low, "high": _signed(s.late_a) * _signed(s.late_b)}

    def total(self, s: SimpleNamespace) -> Value:
        if not self._split:
            return s.low
        return Cat(s.low[:AMD_WIDTH], s.high + _signed(s.low[AMD_WIDTH:]))[: self._width]


def _signed(value: Value) -> Value:
    return Cat(value, Const(0, 1)).as_signed()


class Ecp5Product(Product):
    """Four MULT18X18D, one where the operands are narrow enough, with the registers that are in them.

    1. the multipliers' inputs, a register each
    2. the multipliers, and a register at their outputs
    3. the sum of the two products of a low and a high part
    4. that, added to the other two, which do not overlap
    """

    def __init__(self, m: Module, p: Pipeline, width: int) -> None:
        if width > 2 * ECP5_WIDTH:
            raise ValueError(f"{width} bits are too wide for a product on ECP5: use at most {2 * ECP5_WIDTH}")
        self._m = m
        self._p = p
        self._width = width
        self._parts: dict[str, Value] = {}

    def first(self, a: Value, b: Value) -> dict[str, Value]:
        low = slice(None, ECP5_WIDTH)
        high = slice(ECP5_WIDTH, None)
        self._parts["low"] = self._multiplier("low", a[low], b[low])
        if self._width > ECP5_WIDTH:
            self._parts["mixed_a"] = self._multiplier("mixed_a", a[high], b[low])
            # Of a square both mixed products are one.
            if a is b:
                self._parts["mixed_b"] = self._parts["mixed_a"]
            else:
                self._parts["mixed_b"] = self._multiplier("mixed_b", a[low], b[high])
            self._parts["high"] = self._multiplier("high", a[high], b[high])
        return {}

    def second(self, s: SimpleNamespace) -> dict[str, Value]:
        return {}

    def third(self, s: SimpleNamespace) -> dict[str, Value]:
        if self._width <= ECP5_WIDTH:
            return {"outer": self._parts["low"]}
        return {
            "outer": Cat(self._parts["low"], self._parts["high"]),
            "mixed": self._parts["mixed_a"] + self._parts["mixed_b"],
        }

    def total(self, s: SimpleNamespace) -> Value:
        if self._width <= ECP5_WIDTH:
            return s.outer
        return Cat(s.outer[:ECP5_WIDTH], s.outer[ECP5_WIDTH:] + s.mixed)[: 2 * self._width]

    def _multiplier(self, name: str, a: Value, b: Value) -> Value:
        """The product of ``a`` and ``b``, which are there in step 1, in step 3."""
        product = Signal(2 * ECP5_WIDTH, name=f"product_{name}")
        at_input, at_output = ("CLK0" if self._p.registered(step) else "NONE" for step in range(2))
        bits = {f"i_A{i}": a[i] if i < len(a) else Const(0, 1) for i in range(ECP5_WIDTH)}
        bits |= {f"i_B{i}": b[i] if i < len(b) else Const(0, 1) for i in range(ECP5_WIDTH)}
        bits |= {f"o_P{i}": product[i] for i in range(2 * ECP5_WIDTH)}
        self._m.submodules[f"multiplier_{name}"] = Instance(
            "MULT18X18D",
            p_REG_INPUTA_CLK=at_input,
            p_REG_INPUTB_CLK=at_input,
            p_REG_OUTPUT_CLK=at_output,
            p_SOURCEB_MODE="B_SHIFT",
            i_CLK0=ClockSignal(),
            i_CE0=self._p.en,
            i_RST0=Const(0, 1),
            # The other clocks are not used; linters ask for them.
            **{f"i_{pin}{number}": Const(0, 1) for pin in ("CLK", "CE", "RST") for number in (1, 2, 3)},
            o_SIGNEDP=Signal(name=f"signed_{name}"),
            i_SIGNEDA=Const(0, 1),
            i_SIGNEDB=Const(0, 1),
            i_SOURCEA=Const(0, 1),
            i_SOURCEB=Const(0, 1),
            **bits,
        )
        return product[: len(a) + len(b)]
