"""A core under Verilator: its registers, and a memory behind its AXI ports that checks the protocol in every clock."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.faults import Faults
from relay_eps_hw.interface.registers import REGISTERS, SPACE, Access, registers
from relay_eps_hw.interface.vendor import KERNEL
from relay_eps_sim import checks
from relay_eps_sim.model import Model

Direction = Literal["read", "write"]

RESET_CLOCKS = 8
#: Ctrl-C is noticed after so many clocks.
SLICE = 100_000
#: What `SimulatedCore.bursts` returns; a clock of -1 has not come. ``strobes`` are the bytes that a write names.
BURST = np.dtype(
    [
        ("address", "<u8"),
        ("asked", "<i8"),
        ("first", "<i8"),
        ("last", "<i8"),
        ("answered", "<i8"),
        ("strobes", "<u4"),
        ("beats", "<u2"),
        ("port", "u1"),
        ("is_write", "?"),
    ]
)
_STRAY = np.dtype([("address", "<u8"), ("port", "<u4"), ("is_write", "<u4")])


@dataclass(frozen=True)
class MemoryModel:
    """How a port's memory behaves. Reads see memory when a beat is offered, writes change it with their response.

    Attributes:
        latency: clocks from a read's address to its first beat, and from a write's last beat to its response.
        jitter: up to so many more, at random; answers keep their order.
        stall: 0 to 0.99, how probable it is for each channel and clock that the memory offers or takes nothing.
        shared: reads and writes together have one beat a clock, and take turns; otherwise each has one.
        outstanding: bursts of a direction that are accepted and not completed.
    """

    latency: int = 100
    jitter: int = 0
    stall: float = 0.0
    shared: bool = False
    outstanding: int = 64

    def __post_init__(self) -> None:
        for name, least in (("latency", 1), ("jitter", 0), ("outstanding", 1)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 1 << 31:
                raise ValueError(f"{name} = {value!r} is not supported: use {least} to 2**31 - 1")
        checks.probability("stall", self.stall)


class _Behaviour(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("latency", "jitter", "stall", "shared", "outstanding"))


class SimulatedCore(Model):
    """The Verilog of a core, compiled and cached, after a reset.

    Args:
        config: what the Verilog was made with.
        verilog: has the module ``relay_eps``.
        faults: those built into it; `select_fault` activates one.
        seed: registers without a reset start with random values of this seed, 0 to 2**31 - 1; with zeros for 0.
        waves: a file for the waves of every clock, in the format VCD; written to its end by `close`.

    Raises BuildError where it cannot be compiled, OSError where the waves cannot be written.
    """

    def __init__(
        self,
        config: CoreConfig,
        verilog: str,
        *,
        faults: Faults | None = None,
        seed: int = 1,
        waves: Path | None = None,
    ) -> None:
        self.config = config
        self._regions: list[tuple[int, NDArray[np.uint8]]] = []
        defines = {
            "CLOCK": "ap_clk",
            "PORTS": config.ports,
            "BEAT_BYTES": config.beat_bytes,
            "BURST_BEATS": config.burst_beats,
            "ADDRESS_BITS": config.address_bits,
        }
        driver = Path(__file__).with_suffix(".cpp")
        super().__init__(verilog, KERNEL, driver, defines=defines, faults=faults, seed=seed, trace=waves is not None)
        _declare(self.library)
        if waves is not None and not self.library.core_waves(self.handle, bytes(waves)):
            self.close()
            raise OSError(f"{waves} cannot be written: name a file in a folder that exists")
        if faults is not None:
            self.select_fault(0)
        self.configure(MemoryModel())
        self.reset()

    @property
    def now(self) -> int:
        """Clocks since it was made."""
        return self.library.core_now(self.handle)

    @property
    def interrupt(self) -> bool:
        """Whether the interrupt is high."""
        return bool(self.library.core_interrupt(self.handle))

    def reset(self) -> None:
        """Reset the core; the memory forgets what was under way, and writes without a response with it."""
        self.library.core_reset(self.handle, RESET_CLOCKS)

    def clock(self, clocks: int = 1) -> None:
        """Run so many clocks; ValueError for less than none."""
        if clocks < 0:
            raise ValueError(f"{clocks} clocks cannot be run: use 0 or more")
        while clocks > 0:
            clocks -= self.library.core_run(self.handle, min(clocks, SLICE), 0)

    def wait(self, limit: int) -> int:
        """Run until the interrupt; the clocks it took. TimeoutError after ``limit`` of them."""
        waited = 0
        while not self.interrupt:
            if waited >= limit:
                raise TimeoutError(f"no interrupt within {limit} clocks")
            waited += self.library.core_run(self.handle, min(limit - waited, SLICE), 1)
        return waited

    # The memory.

    def attach(self, base: int, data: NDArray[np.uint8]) -> None:
        """Memory at the address ``base``, seen through all ports: the array itself, which is read and written.

        Raises ValueError for an array that cannot be used as it is, and for one that overlaps another.
        """
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous or not data.flags.writeable:
            raise ValueError("memory is a contiguous, writeable, one-dimensional array of uint8")
        end = base + len(data)
        if not 0 <= base < end <= 1 << 64:
            raise ValueError(f"memory of {len(data)} bytes at {base:#x} is not possible")
        for other, held in self._regions:
            if base < other + len(held) and other < end:
                raise ValueError(f"memory at {base:#x} overlaps that of {len(held)} bytes at {other:#x}")
        self.library.core_attach(self.handle, base, len(data), data.ctypes.data)
        self._regions.append((base, data))

    def detach(self) -> None:
        """Take all memory away; RuntimeError while bursts are under way."""
        if not self.library.core_detach(self.handle):
            raise RuntimeError("bursts are under way: finish or reset first")
        self._regions.clear()

    def configure(self, model: MemoryModel | Sequence[MemoryModel], seed: int = 1) -> None:
        """How the memory behaves from now on: one for all ports, or one for each; ``seed`` is of its random clocks."""
        models = [model] * self.config.ports if isinstance(model, MemoryModel) else list(model)
        if len(models) != self.config.ports:
            raise ValueError(f"{len(models)} models were given: the core has {self.config.ports} ports")
        for port, each in enumerate(models):
            stall = int(each.stall * (2**32 - 1))
            behaviour = _Behaviour(each.latency, each.jitter, stall, each.shared, each.outstanding)
            self.library.core_configure(self.handle, port, ctypes.byref(behaviour), checks.seed(seed))

    def fail(self, port: int, direction: Direction, address: int) -> None:
        """Answer SLVERR to every burst of this direction whose bytes hold ``address``, until `heal`."""
        self.library.core_fail(self.handle, self._port(port), _is_write(direction), address)

    def mute(self, port: int, direction: Direction, after: int = 0, *, addresses: bool = False) -> None:
        """Answer no more bursts after ``after`` further ones, until `heal`; with ``addresses``, accept no more."""
        if after < 0:
            raise ValueError(f"after = {after} bursts is not possible: use 0 or more")
        self.library.core_mute(self.handle, self._port(port), _is_write(direction), after, addresses)

    def heal(self) -> None:
        """End what `fail` and `mute` began; what was not answered will be."""
        self.library.core_heal(self.handle)

    def _port(self, port: int) -> int:
        if port not in range(self.config.ports):
            raise ValueError(f"there is no port {port!r}: use 0 to {self.config.ports - 1}")
        return port

    # What was seen.

    def bursts(self) -> NDArray[np.void]:
        """All bursts since `clear_log`, of dtype `BURST`, in the order of their addresses' handshakes."""
        return self._records(self.library.core_log, BURST)

    def clear_log(self) -> None:
        """Forget all bursts, those under way too."""
        self.library.core_clear_log(self.handle)

    @property
    def stray(self) -> list[tuple[int, bool, int]]:
        """Bursts that touched what is no memory: port, whether it was a write, address."""
        records = self._records(self.library.core_strays, _STRAY)
        return [(int(each["port"]), bool(each["is_write"]), int(each["address"])) for each in records]

    @property
    def violations(self) -> list[str]:
        """The first hundred breaches of the protocol."""
        texts: list[str] = []
        while (text := self.library.core_violation(self.handle, len(texts))) is not None:
            texts.append(text.decode())
        return texts

    def check(self) -> None:
        """Raise AssertionError, with the first breaches of the protocol and their clocks, if there was any."""
        violated = self.library.core_violated(self.handle)
        if violated:
            raise AssertionError("\n".join([f"the protocol was violated {violated} times:", *self.violations[:10]]))

    def _records(self, function: ctypes._NamedFuncPointer, dtype: np.dtype) -> NDArray[np.void]:
        count = ctypes.c_uint64()
        start = function(self.handle, ctypes.byref(count))
        if not count.value:
            return np.empty(0, dtype)
        return np.frombuffer(ctypes.string_at(start, count.value * dtype.itemsize), dtype).copy()

    # The registers.

    def write_register(self, offset: int, value: int, strobes: int = 15) -> None:
        """Write a word; RuntimeError without an answer, or with one that is not OKAY."""
        if value not in range(1 << 32) or strobes not in range(16):
            raise ValueError(f"{value:#x} with the strobes {strobes:#x} is no word")
        _check_response("write", offset, self.library.core_write(self.handle, _word(offset), value, strobes))

    def read_register(self, offset: int) -> int:
        """Read a word; RuntimeError as for a write."""
        value = ctypes.c_uint32()
        _check_response("read", offset, self.library.core_read(self.handle, _word(offset), ctypes.byref(value)))
        return value.value

    def set(self, name: str, value: int) -> None:
        """Write the register of this name, a word after the other; ValueError for one that is only read."""
        register = REGISTERS[name]
        if register in registers(Access.STATUS):
            raise ValueError(f"{name} is only read: `get` says what it holds")
        if not 0 <= value < 1 << register.width:
            raise ValueError(f"{value:#x} does not fit in {name}, of {register.width} bits")
        for word in range(register.words):
            self.write_register(register.offset + 4 * word, value >> 32 * word & 0xFFFF_FFFF)

    def get(self, name: str) -> int:
        """Read the register of this name, a word after the other."""
        register = REGISTERS[name]
        return sum(self.read_register(register.offset + 4 * word) << 32 * word for word in range(register.words))

    def start(self, batch_address: int, count: int, completion_address: int) -> None:
        """Start a batch, with the interrupt of its end enabled; RuntimeError while another one runs."""
        if self.get("control") & 1:
            raise RuntimeError("a batch is running: wait for it with `finish`, or `reset`")
        self.set("batch_address", batch_address)
        self.set("count", count)
        self.set("completion_address", completion_address)
        self.set("interrupt_mask", 1)
        self.set("interrupt_enable", 1)
        self.set("control", 1)

    def finish(self, limit: int) -> int:
        """Wait for the batch's end and acknowledge it; the clocks as `wait` has them."""
        waited = self.wait(limit)
        self.set("interrupt_status", self.get("interrupt_status"))
        self.get("control")
        return waited


def _word(offset: int) -> int:
    if offset not in range(0, SPACE, 4):
        raise ValueError(f"there is no register at {offset!r}: use a multiple of 4 below {SPACE}")
    return offset


def _check_response(done: str, offset: int, response: int) -> None:
    if response:
        said = "no response" if response < 0 else f"the response {response}"
        raise RuntimeError(f"a {done} of the register at {offset:#x} had {said}")


def _is_write(direction: Direction) -> bool:
    if direction not in ("read", "write"):
        raise ValueError(f"{direction!r} is no direction: use 'read' or 'write'")
    return direction == "write"


def _declare(library: ctypes.CDLL) -> None:
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    declared: dict[str, tuple[type | None, list[type]]] = {
        "core_waves": (ctypes.c_int, [ctypes.c_char_p]),
        "core_reset": (None, [ctypes.c_int]),
        "core_run": (u64, [u64, ctypes.c_int]),
        "core_now": (u64, []),
        "core_interrupt": (ctypes.c_int, []),
        "core_write": (ctypes.c_int, [u32, u32, u32]),
        "core_read": (ctypes.c_int, [u32, pointer]),
        "core_attach": (None, [u64, u64, pointer]),
        "core_detach": (ctypes.c_int, []),
        "core_configure": (None, [u32, pointer, u32]),
        "core_fail": (None, [u32, u32, u64]),
        "core_mute": (None, [u32, u32, u64, u32]),
        "core_heal": (None, []),
        "core_log": (pointer, [pointer]),
        "core_clear_log": (None, []),
        "core_strays": (pointer, [pointer]),
        "core_violated": (u64, []),
        "core_violation": (ctypes.c_char_p, [u64]),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = [pointer, *arguments]
