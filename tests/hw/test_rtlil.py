"""Operators of equal widths: the logic means what it did, and linters have nothing to ask about."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from amaranth.back import rtlil
from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from relay_eps_hw.floats.unit import FloatUnit
from relay_eps_hw.rtlil import equal_widths
from relay_eps_hw.verilog import convert
from relay_eps_sim.units import SimulatedUnit
from tests.hw.floats import bench
from tests.hw.lint import lint

#: Expressions of operands of 5 and 9 bits, with widths and signs mixed in every way that Amaranth has.
EXPRESSIONS: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "add signed": lambda a, b: a.as_signed() + b.as_signed(),
    "subtract mixed": lambda a, b: a.as_signed() - b,
    "multiply signed": lambda a, b: a.as_signed() * b.as_signed(),
    "add a constant": lambda a, b: b + 3,
    "add a negative constant": lambda a, b: a.as_signed() + Const(-2, 3),
    "add pieces": lambda a, b: Cat(a[:2], b[3:5]) + b[2:],
    "sign of pieces": lambda a, b: Cat(b[:2], a[4]).as_signed() + b.as_signed(),
    "equal": lambda a, b: a == b,
    "not equal": lambda a, b: a != b[:7],
    "less": lambda a, b: a < b,
    "less, signed": lambda a, b: a.as_signed() < b.as_signed(),
    "at least a constant": lambda a, b: b >= 17,
    "no bit set": lambda a, b: b == 0,
    "no bit of one set": lambda a, b: b[0] == 0,
    "shift up": lambda a, b: a << b[:3],
    "shift down": lambda a, b: b >> a[:3],
    "choose a bit": lambda a, b: b.bit_select(a[:3], 1) + a,
    "choose some bits": lambda a, b: b.word_select(a[:1], 3) + a,
    "shift by a constant": lambda a, b: (a << 3) + b,
    "choose": lambda a, b: Mux(a[0], a, b) + a,
    "nothing beside something": lambda a, b: Cat(a[:0], b, Signal(0)) + a,
}


class Expressions(FloatUnit):
    """One of the expressions, 32 bits of it."""

    OPERANDS = ("a", "b", "which")

    def __init__(self) -> None:
        super().__init__((5, 9, 5), 32, (1,), 1, None)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        results = [expression(self.a, self.b) for expression in EXPRESSIONS.values()]
        chosen = Signal(32)
        with m.Switch(self.which):
            for number, result in enumerate(results):
                with m.Case(number):
                    m.d.comb += chosen.eq(result)
        m.d.comb += self.o.eq(p.cut(o=chosen).o)
        p.finish()
        return m


def ports(unit: FloatUnit) -> list[Value]:
    return [unit.en, *(getattr(unit, name) for name in unit.OPERANDS), unit.o]


def test_every_operator_means_what_it_did(rng: np.random.Generator):
    which = np.repeat(np.arange(len(EXPRESSIONS), dtype=np.uint32), 60)
    a, b = (rng.integers(1 << width, size=len(which), dtype=np.uint32) for width in (5, 9))
    # Zero, all ones and their like are what comparisons and signs are about.
    a[::3], b[::4] = rng.choice([0, 15, 16, 31], len(a[::3])), rng.choice([0, 17, 255, 256, 511], len(b[::4]))
    wanted = bench.run(Expressions(), a, b, which, rng=rng)
    with SimulatedUnit(Expressions()) as sim:
        got = sim.run(a, b, which)
    wrong = {list(EXPRESSIONS)[which[k]] for k in np.flatnonzero(got != wanted)}
    assert wrong == set()


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_linters_have_nothing_to_ask_about(name: str, tmp_path):
    m = Module()
    a, b = Signal(5, name="a"), Signal(9, name="b")
    result = EXPRESSIONS[name](a, b)
    o = Signal(result.shape(), name="o")
    m.d.comb += o.eq(result)
    assert lint(convert(m, "top", [a, b, o]), "top", tmp_path) == ""


def test_the_linter_would_ask_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr("relay_eps_hw.verilog.equal_widths", lambda text: text)
    unit = Expressions()
    assert "WIDTHEXPAND" in lint(convert(unit, "top", ports(unit)), "top", tmp_path)


def test_equal_widths_are_left_as_they_are():
    m = Module()
    a, b, o = (Signal(4, name=name) for name in "abo")
    m.d.comb += o.eq(a & b)
    text = rtlil.convert(m, name="top", ports=[a, b, o], emit_src=False)
    assert equal_widths(text) == text
