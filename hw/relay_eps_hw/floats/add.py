"""Addition, in one path: align, add, normalise, round."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Value

from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.floats.fields import Fields
from relay_eps_hw.floats.formats import FP32, FloatFormat
from relay_eps_hw.floats.pipeline import Pipeline, carried
from relay_eps_hw.floats.shift import leading_zeros, shift_left, shift_right_sticky
from relay_eps_hw.floats.unit import FloatUnit, check_format

#: Bits under the significand: guard, round and sticky. Operands that never cancel need no round bit.
EXTRA = 3
EXTRA_NON_NEGATIVE = 2
#: What is carried beside the significands.
BESIDE = ("exponent", "sign", "both_negative", "nan", "inf")


class Add(FloatUnit):
    """``o = a + b``. To subtract, turn b's sign bit.

    Steps:

    1. compare the magnitudes (only the exponents where nothing cancels); see which operands are special
    2. swap, so that the first is the larger
    3. subtract the exponents
    4. move the smaller significand down: by 16 and all of it
    5. by 8 and 4
    6. by 2 and 1; complement it where the signs differ
    7. add
    8. count leading zeros, in halves                              }
    9. move up by 16 and 8; lower the exponent                     } not where nothing cancels
    10. move up by 4, 2 and 1                                      }
    11. decide the rounding (after a move down by one, where nothing cancels); put in special results
    12. add the rounding, through fraction and exponent

    Args:
        fmt: the format of a, b and o.
        non_negative: neither operand has its sign set unless it is a NaN. Such sums never cancel, so there is no
            normaliser. With other operands the result holds no meaning.
    """

    OPERANDS = ("a", "b")

    def __init__(
        self,
        fmt: FloatFormat = FP32,
        *,
        depth: int | None = None,
        non_negative: bool = False,
        faults: Faults | None = None,
    ) -> None:
        self.fmt = check_format(fmt)
        self.non_negative = non_negative
        steps = 9 if non_negative else 12
        super().__init__((fmt.width, fmt.width), fmt.width, (1,) * steps, depth, faults)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.pipeline(m)
        s = self._align(p)
        result = self._sum_non_negative(p, s) if self.non_negative else self._sum(p, s)
        m.d.comb += self.o.eq(result)
        p.finish()
        return m

    def _align(self, p: Pipeline) -> SimpleNamespace:
        """Steps 1 to 6: the larger significand, the smaller one aligned to it, and what else is known."""
        fmt = self.fmt
        a, b = Fields(fmt, self.a), Fields(fmt, self.b)
        smaller = a.exponent < b.exponent if self.non_negative else self.a[:-1] < self.b[:-1]
        s = p.cut(
            a=Cat(a.significand, a.effective_exponent),
            b=Cat(b.significand, b.effective_exponent),
            swap=smaller,
            sign_a=a.sign,
            sign_b=b.sign,
            nan=a.is_nan | b.is_nan,
            inf_a=a.is_inf,
            inf_b=b.is_inf,
        )
        subtract: Value = Const(0)
        cancel_inf: Value = Const(0)
        if not self.non_negative:
            subtract = s.sign_a ^ s.sign_b
            cancel_inf = fault(self.faults, "add.inf-minus-inf", s.inf_a & s.inf_b & subtract, Const(0))
        s = p.cut(
            large=Mux(s.swap, s.b, s.a),
            small=Mux(s.swap, s.a, s.b),
            sign=0 if self.non_negative else Mux(s.swap, s.sign_b, s.sign_a),
            both_negative=s.sign_a & s.sign_b,
            subtract=subtract,
            nan=s.nan | cancel_inf,
            inf=s.inf_a | s.inf_b,
        )
        exponent = s.large[fmt.precision :]
        distance = (exponent - s.small[fmt.precision :])[: fmt.exponent]
        s = p.cut(
            large=s.large[: fmt.precision],
            small=s.small[: fmt.precision],
            exponent=exponent,
            distance=distance,
            **carried(s, ("sign", "both_negative", "subtract", "nan", "inf")),
        )
        return self._move_down(p, s)

    def _move_down(self, p: Pipeline, s: SimpleNamespace) -> SimpleNamespace:
        """Steps 4 to 6."""
        extra = EXTRA_NON_NEGATIVE if self.non_negative else EXTRA
        levels = [bit for bit in range(self.fmt.exponent) if 1 << bit < self.fmt.precision + extra]
        far = s.distance[len(levels) :].any()
        small = Cat(Const(0, extra), s.small)
        # Beyond the last level nothing is left but the sticky bit.
        small = Mux(far, Cat(small.any(), Const(0, len(small) - 1)), small)
        distance = s.distance[: len(levels)]
        for step, bits in enumerate(((4, 5), (2, 3), (0, 1))):
            for bit in reversed(bits):
                if bit < len(levels):
                    small = shift_right_sticky(p, small, distance[bit], 1 << bit)
            if step == 0:
                small = fault(self.faults, "add.sticky-dropped", small, Cat(Const(0, 1), small[1:]))
            if step == 2 and not self.non_negative:
                small ^= s.subtract.replicate(len(small))
            s = p.cut(small=small, distance=distance, subtract=s.subtract, **carried(s, ("large", *BESIDE)))
            small, distance = s.small, s.distance
        return s

    def _sum(self, p: Pipeline, s: SimpleNamespace) -> Value:
        """Steps 7 to 12, where the operands may cancel."""
        fmt = self.fmt
        width = fmt.precision + EXTRA + 1
        # The carry comes in through a bit below both.
        total = Cat(Const(1, 1), Const(0, EXTRA), s.large) + Cat(s.subtract, s.small, Const(0, 1))
        carry = fault(self.faults, "add.carry-lost", total[width] & ~s.subtract, Const(0))
        # A sum may move up until its exponent is 1: a mark at that place stops the count there.
        mark = Cat(s.exponent == width - 1 - place for place in range(width))
        s = p.cut(total=Cat(total[1:width], carry), mark=mark, **carried(s, BESIDE))

        marked = fault(self.faults, "add.subnormal-moved-too-far", s.total | s.mark, s.total)
        half = 1 << ((width - 1).bit_length() - 1)
        # One bit under the total stops the count of a total of zeros; what it then is does not matter.
        padded = Cat(Const(1, 2 * half - width), marked)
        s = p.cut(
            total=s.total,
            high=leading_zeros(p, padded[half:]),
            low=leading_zeros(p, padded[:half]),
            zero=~s.total.any(),
            **carried(s, BESIDE),
        )
        count = Cat(Mux(s.high[-1], s.low[:-1], s.high[:-1]), s.high[-1])
        count = p.share(count)
        total = shift_left(p, s.total, count[3:], 8)
        exponent = (s.exponent + 1 - count)[: fmt.exponent + 1]
        sign = fault(self.faults, "add.sign-of-zero", Mux(s.zero, s.both_negative, s.sign), s.sign)
        s = p.cut(total=total, count=count[:3], exponent=exponent, sign=sign, nan=s.nan, inf=s.inf)
        total = shift_left(p, s.total, s.count)
        # Where everything has cancelled it may be below zero: without its top bit that would look like an overflow.
        below_zero = fault(self.faults, "add.zero-is-infinite", s.exponent[-1], Const(0))
        exponent = s.exponent[: fmt.exponent] & ~below_zero.replicate(fmt.exponent)
        s = p.cut(total=total, exponent=exponent, sign=s.sign, nan=s.nan, inf=s.inf)

        significand, guard, sticky = s.total[EXTRA + 1 :], s.total[EXTRA], s.total[:EXTRA].any()
        return self._round(p, s, significand, guard, sticky, s.exponent)

    def _sum_non_negative(self, p: Pipeline, s: SimpleNamespace) -> Value:
        """Steps 7, 11 and 12, where nothing cancels."""
        fmt = self.fmt
        total = Cat(Const(0, EXTRA_NON_NEGATIVE), s.large) + s.small
        s = p.cut(total=total, exponent=s.exponent, sign=s.sign, nan=s.nan, inf=s.inf)
        carry = fault(self.faults, "add.carry-not-moved", s.total[-1], Const(0))
        significand = Mux(carry, s.total[-fmt.precision :], s.total[-fmt.precision - 1 : -1])
        guard = Mux(carry, s.total[EXTRA_NON_NEGATIVE], s.total[1])
        sticky = s.total[0] | carry & s.total[1]
        return self._round(p, s, significand, guard, sticky, (s.exponent + carry)[: fmt.exponent])

    def _round(
        self, p: Pipeline, s: SimpleNamespace, significand: Value, guard: Value, sticky: Value, exponent: Value
    ) -> Value:
        """Steps 11 and 12. A significand without its top bit is subnormal or zero: its stored exponent is 0."""
        fmt = self.fmt
        top = significand[-1]
        overflow = exponent.all()
        special = s.nan | s.inf | overflow
        tie = fault(self.faults, "add.tie-away", sticky | significand[0], Const(1))
        stored = exponent & top.replicate(fmt.exponent)
        s = p.cut(
            fraction=Cat(
                significand[: fmt.fraction - 1] & ~special.replicate(fmt.fraction - 1),
                Mux(special, s.nan, significand[fmt.fraction - 1]),
            ),
            exponent=stored | special.replicate(fmt.exponent),
            up=guard & tie & ~special,
            sign=s.sign & ~s.nan,
        )
        rounded = Cat(s.fraction, s.exponent) + s.up
        return p.cut(o=Cat(rounded[: fmt.width - 1], s.sign)).o
