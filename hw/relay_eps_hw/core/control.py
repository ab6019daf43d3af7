"""The registers as logic: an AXI4-Lite slave made of the table in `interface.registers`."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.interface.registers import REGISTERS, SPACE, Access, Register, registers

ADDRESS_BITS = (SPACE - 1).bit_length()
#: Statuses that are known when the logic is built.
#: Arguments that the core uses.
USED = ("batch_address", "count", "completion_address")
CONSTANTS = ("identity", "version", "build_id", "capabilities", "limits")


class Control(wiring.Component):
    """The slave ``s_axi_control``, and what it starts.

    A write is answered in the clock after its address and its data are there, a read in the clock after its address;
    one of each at a time. What is read is what was there when the address was taken.

    Ports:
        bus (in, AXI4-Lite of 32 bits and 12 address bits).
        start (out, 1): high from the host's start until ``done``.
        done (in, 1): for one clock, the batch has ended.
        soft_reset (out, 1): high from the host's request until ``drained``.
        drained (in, 1): for one clock, the core has come to rest.
        interrupt (out, 1): level, as the masks and the waiting interrupts say.
        peek (in): a word of the register space, by its index; peeked (out, 32): what it holds, in the same clock, if
            peeking (out, 1): the host is not reading.
        one output for each argument of `USED`, by its name; it does not change while ``start`` is high if the host
        keeps to the protocol.
        one input for each status that is not constant, by its name.

    Args:
        constants: the values of `CONSTANTS`; ValueError where one is missing, unknown or too large.
    """

    def __init__(self, constants: dict[str, int], faults: Faults | None = None) -> None:
        if set(constants) != set(CONSTANTS):
            raise ValueError(f"the constants are {', '.join(CONSTANTS)}, not {', '.join(constants)}")
        for name, value in constants.items():
            if not 0 <= value < 1 << REGISTERS[name].width:
                raise ValueError(f"the constant {name} = {value:#x} does not fit in {REGISTERS[name].width} bits")
        self.faults = faults
        self._constants = constants
        statuses = [register for register in registers(Access.STATUS) if register.name not in constants]
        super().__init__(
            {
                "bus": In(axi.lite(ADDRESS_BITS)),
                "start": Out(1),
                "done": In(1),
                "soft_reset": Out(1),
                "drained": In(1),
                "interrupt": Out(1),
                "peek": In(ADDRESS_BITS - 2),
                "peeked": Out(32),
                "peeking": Out(1),
            }
            | {name: Out(REGISTERS[name].width) for name in USED}
            | {register.name: In(register.width) for register in statuses}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._words: dict[int, Value] = {}
        written = _Write(m, self.bus)
        taken = _read_address(m, self.bus)
        self._arguments(m, written)
        for register in registers(Access.STATUS):
            value = self._constants.get(register.name)
            self._shown(register, getattr(self, register.name) if value is None else Const(value, register.width))
        self._protocol(m, written, taken)
        self._reset(m, written)
        self._read(m, taken)
        return m

    def _shown(self, register: Register, value: Value) -> None:
        for word in range(register.words):
            self._words[register.offset // 4 + word] = value[32 * word : 32 * (word + 1)]

    def _arguments(self, m: Module, written: _Write) -> None:
        """All are kept in a memory for the host to read, and those that the core uses in registers besides."""
        every = {register.name: register for register in registers(Access.ARGUMENT)}
        words = [register.offset // 4 + word for register in every.values() for word in range(register.words)]
        m.submodules.arguments = memory = Memory(shape=32, depth=1 << max(words).bit_length(), init=[])
        write, read = memory.write_port(granularity=8), memory.read_port(domain="comb")
        strobes = fault(self.faults, "control.strobes-ignored", written.strobes, Const(0b1111))
        m.d.comb += [
            write.addr.eq(written.word),
            write.data.eq(written.data),
            write.en.eq(Mux(written.now & written.word.matches(*words), strobes, 0)),
            read.addr.eq(self.bus.araddr[2:]),
        ]
        self._words |= dict.fromkeys(words, read.data)
        for name in USED:
            register = every[name]
            # Like the memory they outlast a reset.
            value = Signal(register.width, name=name, reset_less=True)
            m.d.comb += getattr(self, name).eq(value)
            for byte in range(register.width // 8):
                with m.If(written.to(register, byte // 4) & strobes[byte % 4]):
                    m.d.sync += value.word_select(byte, 8).eq(written.data.word_select(byte % 4, 8))

    def _protocol(self, m: Module, written: _Write, taken: Value) -> None:
        """``ap_ctrl_hs``: start, done, idle and ready, and the interrupts of done and ready."""
        control, enable, mask, status = registers(Access.PROTOCOL)
        done, enabled = Signal(), Signal()
        masked, waiting = Signal(2), Signal(2)
        asks = written.bits(control)[0]
        with m.If(self.done):
            m.d.sync += self.start.eq(0)
        with m.Elif(asks):
            m.d.sync += self.start.eq(1)
        is_read = taken & (self.bus.araddr[2:] == control.offset // 4)
        with m.If(self.done):
            m.d.sync += done.eq(1)
        with m.Elif(fault(self.faults, "control.done-not-cleared", is_read, Const(0))):
            m.d.sync += done.eq(0)
        self._shown(control, Cat(self.start, done, ~self.start, ~self.start, Const(0, 28)))

        with m.If(written.to(enable) & written.strobes[0]):
            m.d.sync += enabled.eq(written.data[0])
        with m.If(written.to(mask) & written.strobes[0]):
            m.d.sync += masked.eq(written.data[:2])
        # Done and ready come together: one batch at a time.
        event = self.done.replicate(2) & masked
        turned = written.bits(status)[:2]
        m.d.sync += waiting.eq((waiting ^ turned) | event)
        m.d.comb += self.interrupt.eq(enabled & fault(self.faults, "control.ready-only", waiting.any(), waiting[1]))
        for register, value in ((enable, enabled), (mask, masked), (status, waiting)):
            self._shown(register, Cat(value, Const(0, 32 - len(value))))

    def _reset(self, m: Module, written: _Write) -> None:
        (reset,) = registers(Access.COMMAND)
        with m.If(self.drained):
            m.d.sync += self.soft_reset.eq(0)
        with m.Elif(written.bits(reset)[0]):
            m.d.sync += self.soft_reset.eq(1)
        self._shown(reset, Cat(self.soft_reset, Const(0, 31)))

    def _read(self, m: Module, taken: Value) -> None:
        chosen = Signal(32)
        m.d.comb += [self.peeking.eq(~taken), self.peeked.eq(chosen)]
        with m.Switch(Mux(taken, self.bus.araddr[2:], self.peek)):
            for word, value in self._words.items():
                with m.Case(word):
                    m.d.comb += chosen.eq(value)
        with m.If(taken):
            m.d.sync += self.bus.rdata.eq(chosen)
        m.d.comb += self.bus.rresp.eq(axi.OKAY)


def _read_address(m: Module, bus: wiring.PureInterface) -> Value:
    """Whether a read's address is taken in this clock; its answer is held from the next one until it is taken."""
    taken = Signal()
    m.d.comb += [bus.arready.eq(~bus.rvalid), taken.eq(bus.arvalid & bus.arready)]
    with m.If(taken):
        m.d.sync += bus.rvalid.eq(1)
    with m.Elif(bus.rready):
        m.d.sync += bus.rvalid.eq(0)
    return taken


class _Write:
    """A write as it takes effect, in the clock in which its address and data are taken.

    Attributes:
        now (1): there is one; word: which word of the register space it is to.
        data (32), strobes (4).
    """

    def __init__(self, m: Module, bus: wiring.PureInterface) -> None:
        self.data = bus.wdata
        self.strobes = bus.wstrb
        self.word = bus.awaddr[2:]
        self.now = Signal(name="written")
        # Both are taken at once: neither has to be kept.
        m.d.comb += [
            self.now.eq(bus.awvalid & bus.wvalid & ~bus.bvalid),
            bus.awready.eq(self.now),
            bus.wready.eq(self.now),
            bus.bresp.eq(axi.OKAY),
        ]
        with m.If(self.now):
            m.d.sync += bus.bvalid.eq(1)
        with m.Elif(bus.bready):
            m.d.sync += bus.bvalid.eq(0)

    def to(self, register: Register, word: int = 0) -> Value:
        """Whether it is to this word of a register."""
        return self.now & (self.word == register.offset // 4 + word)

    def bits(self, register: Register) -> Value:
        """The bits that it sets in the lowest word of a register; 0 where it is none."""
        strobed = Cat(strobe.replicate(8) for strobe in self.strobes)
        return Mux(self.to(register), self.data & strobed, 0)
