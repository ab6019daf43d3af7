"""A batch from its start to its end, and what a fault does to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core.check import found_layout
from relay_eps_hw.core.decode import DESCRIPTORS, FAULT_BITS, SOURCE_BITS
from relay_eps_hw.core.shape import OWNER_BITS, SLOTS, Shape
from relay_eps_hw.core.table import BLOCK_BITS
from relay_eps_hw.faults import Faults, fault
from relay_eps_hw.interface.codes import Fault
from relay_eps_hw.interface.descriptors import DESCRIPTOR, SOURCES

RECORDS = SOURCES.index("records")
NUMBER_BITS = 32


def trouble_layout(address_bits: int) -> data.StructLayout:
    """What ports have met: the fault's code, whose burst it was, and where that begins, in bytes."""
    return data.StructLayout(
        {"found": 1, "code": FAULT_BITS, "source": SOURCE_BITS, "owner": OWNER_BITS, "address": address_bits}
    )


def fault_layout(address_bits: int) -> data.StructLayout:
    """A batch's fault, as the error registers and the record of descriptor ``number`` have it.

    ``refused`` (1): `Check` has found it, in the descriptor that it still has.
    """
    return data.StructLayout(
        {
            "found": 1,
            "code": FAULT_BITS,
            "source": SOURCE_BITS,
            "number": NUMBER_BITS,
            "address": address_bits,
            "refused": 1,
        }
    )


@dataclass(frozen=True)
class Half:
    """A half of a port: its fault, the sources of its streams by their numbers, and the code of an error response."""

    fault: data.View
    sources: Sequence[int]
    code: Fault


def first_trouble(m: Module, halves: Sequence[Half], shape: Shape) -> data.View:
    """The fault of the first half that has one."""
    trouble = Signal(trouble_layout(shape.address_bits))
    for half in reversed(halves):
        met = half.fault
        with m.If(met.found):
            m.d.comb += [
                trouble.found.eq(1),
                trouble.code.eq(Mux(met.dead, Fault.TIMEOUT, half.code)),
                trouble.owner.eq(met.owner),
                trouble.address.eq(met.place << shape.below),
            ]
            with m.Switch(met.number):
                for number, source in enumerate(half.sources):
                    with m.Case(number):
                        m.d.comb += trouble.source.eq(source)
    return trouble


class Supervisor(wiring.Component):
    """Starts batches, stops them at faults and resets, has what is left recorded, and says when all is done.

    Ports:
        start (in, 1), batch_address, completion_address (in, 64), count (in, 32), soft_reset (in, 1): from `Control`.
        done, drained (out, 1): to it.
        trouble (in, `trouble_layout`); resting (in, 1): every port is idle or dead; dead (in, 1): a port is dead.
        found (in, `found_layout`): what `Check` has found in the descriptor that it looks at.
        in_flight (in): descriptors in the pipeline.
        number (in, 32): the next record's; complete (in, 1): its descriptor is; quiet (in, 1): no record is under way;
            unrecorded (in, 1): records cannot be written any more.
        running (out, 1): a batch is; low resets everything that it has left behind.
        clear (out, 1): forget the ports' faults.
        fetching (out, 1), stop (out, 1): descriptors may be asked for; nothing may but records.
        report (out, 1): record the descriptors that are left as they are.
        fault (out, `fault_layout`): it stays until the next start.
    """

    def __init__(self, shape: Shape, *, faults: Faults | None = None) -> None:
        self._bits = shape.address_bits
        self.faults = faults
        super().__init__(
            {
                "start": In(1),
                "batch_address": In(64),
                "completion_address": In(64),
                "count": In(NUMBER_BITS),
                "soft_reset": In(1),
                "done": Out(1),
                "drained": Out(1),
                "trouble": In(trouble_layout(self._bits)),
                "resting": In(1),
                "dead": In(1),
                "found": In(found_layout(self._bits)),
                "in_flight": In(range(SLOTS + 1)),
                "number": In(NUMBER_BITS),
                "complete": In(1),
                "quiet": In(1),
                "unrecorded": In(1),
                "running": Out(1),
                "clear": Out(1),
                "fetching": Out(1),
                "stop": Out(1),
                "report": Out(1),
                "fault": Out(fault_layout(self._bits)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._latch(m)
        m.d.comb += self.running.eq(1)
        with m.FSM():
            with m.State("REST"):
                # The last batch is reset at the end of this clock: until then nothing of it may go out.
                m.d.comb += [self.running.eq(0), self.stop.eq(1), self.clear.eq(self.start)]
                m.d.comb += self.drained.eq(self.soft_reset)
                with m.If(self.start & ~self.soft_reset):
                    m.d.sync += self.fault.eq(0)
                    m.next = "PREPARE"
            with m.State("PREPARE"):
                self._prepare(m)
            with m.State("RUN"):
                m.d.comb += self.fetching.eq(1)
                with m.If(self.number == self.count):
                    m.next = "RECORDS"
                with m.If(self.found.found):
                    self._refuse(m)
                    m.next = "FLUSH"
                self._interrupted(m)
            with m.State("FLUSH"):
                with m.If(self.in_flight == fault(self.faults, "supervisor.does-not-flush", 0, self.in_flight)):
                    m.next = "HALT"
                self._interrupted(m)
            with m.State("HALT"):
                m.d.comb += self.stop.eq(1)
                # Records of what is complete are still being written as such.
                with m.If(self.resting & (self.quiet & ~self.complete | self.unrecorded)):
                    with m.If(self.fault.code == Fault.RESET):
                        self._set(m, Fault.RESET, DESCRIPTORS, Const(0))
                    m.next = "REPORT"
            with m.State("REPORT"):
                m.d.comb += [self.stop.eq(1), self.report.eq(1)]
                with m.If((self.number == self.count) | self.unrecorded):
                    m.next = "RECORDS"
            with m.State("RECORDS"):
                m.d.comb += self.stop.eq(1)
                with m.If(self.trouble.found & ~self.fault.found):
                    self._fail(m)
                with m.Elif(self.resting & (self.quiet | self.unrecorded)):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += [self.stop.eq(1), self.done.eq(1), self.drained.eq(self.soft_reset)]
                m.next = "REST"
        return m

    def _latch(self, m: Module) -> None:
        """A fault is put together here, with one adder for its number and one for its descriptor's address."""
        self._met, self._ahead = Signal.like(self.fault), Signal(signed(OWNER_BITS + 2))
        with m.If(self._met.found):
            m.d.sync += self.fault.eq(self._met)
        m.d.comb += [
            self._met.number.eq(self.number + self._ahead),
            self._met.address.eq(self.batch_address + self._met.number * DESCRIPTOR.size),
        ]

    def _set(self, m: Module, code: Value | Fault, source: Value | int, address: Value | None = None) -> None:
        """A fault, of the next record's descriptor unless ``_ahead`` says another; at the descriptor's own address."""
        met = self._met
        m.d.comb += [met.found.eq(1), met.code.eq(code), met.source.eq(source), met.refused.eq(0), self._ahead.eq(0)]
        if address is not None:
            m.d.comb += self._met.address.eq(address)

    def _refuse(self, m: Module) -> None:
        """A fault in the descriptor that is looked at."""
        self._set(m, self.found.code, self.found.source)
        m.d.comb += [self._ahead.eq(self.in_flight), self._met.refused.eq(1)]
        with m.If(self.found.source != DESCRIPTORS):
            m.d.comb += self._met.address.eq(self.found.address)

    def _fail(self, m: Module) -> None:
        """A port's fault, of the descriptor, or record, whose burst met it."""
        self._set(m, self.trouble.code, self.trouble.source, self.trouble.address)
        owner, number = self.trouble.owner, self.number[:OWNER_BITS]
        # Descriptors that are fetched are behind those in the pipeline, records before them.
        fetched = self.in_flight + (owner - number - self.in_flight)[:OWNER_BITS]
        written = -((number - owner)[:OWNER_BITS])
        of_descriptor = Mux(self.trouble.source == DESCRIPTORS, fetched, (owner - number)[:OWNER_BITS])
        m.d.comb += self._ahead.eq(Mux(self.trouble.source == RECORDS, written, of_descriptor))

    def _interrupted(self, m: Module) -> None:
        """A port's fault, or the host, ends everything at once."""
        with m.If(self.trouble.found):
            self._fail(m)
            m.next = "HALT"
        with m.Elif(self.soft_reset):
            with m.If(~self.fault.found):
                self._set(m, Fault.RESET, DESCRIPTORS, Const(0))
            m.next = "HALT"

    def _prepare(self, m: Module) -> None:
        """Look at the batch's own arguments."""
        wrong_batch, batch_code = self._checked(
            m, "batch", self.batch_address, self.count * (DESCRIPTOR.size >> BLOCK_BITS)
        )
        wrong_records, records_code = self._checked(m, "completion", self.completion_address, self.count)
        m.next = "RUN"
        with m.If(self.count == 0):
            m.next = "DONE"
        with m.Elif(self.count[-1]):
            self._set(m, Fault.LENGTH, DESCRIPTORS, Const(0))
            m.next = "DONE"
        with m.Elif(wrong_records):
            self._set(m, records_code, RECORDS, self.completion_address)
            m.next = "DONE"
        with m.Elif(self.dead):
            self._set(m, Fault.DEAD_PORT, DESCRIPTORS, Const(0))
            m.next = "REPORT"
        with m.Elif(wrong_batch):
            self._set(m, batch_code, DESCRIPTORS)
            m.next = "REPORT"

    def _checked(self, m: Module, name: str, address: Value, blocks: Value) -> tuple[Value, Value]:
        """Whether an address is wrong for so many blocks from there, and the fault's code."""
        first, above = address[BLOCK_BITS : self._bits], address[self._bits :]
        few, many = blocks[: len(first)], blocks[len(first) :]
        misaligned = fault(self.faults, f"supervisor.{name}-alignment", address[:BLOCK_BITS].any(), Const(0, 1))
        end = Signal(len(first) + 1, name=f"{name}_end")
        m.d.comb += end.eq(first + few)
        # The last block may be the last one that there is.
        outside = above.any() | many.any() | end[-1] & end[:-1].any()
        return misaligned | outside, Mux(misaligned, Fault.ALIGNMENT, Fault.ADDRESS)
