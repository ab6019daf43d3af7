"""The EPS core: registers, ports, and between them the engine with its ledger, recorder and supervisor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Module, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from relay_eps_hw.core import axi
from relay_eps_hw.core.config import CoreConfig
from relay_eps_hw.core.control import ADDRESS_BITS, Control
from relay_eps_hw.core.counters import Counters
from relay_eps_hw.core.engine import READERS, Engine
from relay_eps_hw.core.ledger import Ledger
from relay_eps_hw.core.read_port import ReadPort
from relay_eps_hw.core.recorder import Recorder
from relay_eps_hw.core.sections import WRITES
from relay_eps_hw.core.supervisor import Half, Supervisor, first_trouble
from relay_eps_hw.core.words import bits_of
from relay_eps_hw.core.write_port import WritePort
from relay_eps_hw.faults import Faults
from relay_eps_hw.interface.codes import Fault
from relay_eps_hw.interface.descriptors import SOURCES, STREAMS
from relay_eps_hw.interface.registers import IDENTITY, REGISTERS, VERSION

#: The writing streams, in the order of the ports' streams.
WRITERS = (*WRITES, "records")


def constants(config: CoreConfig) -> dict[str, int]:
    """The registers that say what a core was built with."""
    every_format = 0b111
    capabilities = {
        "lanes": config.lanes,
        "ports": config.ports,
        "g_formats": every_format,
        "wire_formats": every_format,
        "port_bytes": config.beat_bytes,
    }
    limits = {"burst_beats": config.burst_beats, "address_bits": config.address_bits}
    return {
        "identity": IDENTITY,
        "version": VERSION,
        "build_id": config.build_id,
        "capabilities": _fields("capabilities", capabilities),
        "limits": _fields("limits", limits),
    }


def _fields(name: str, values: dict[str, int]) -> int:
    return sum(values[field.name] << field.low for field in REGISTERS[name].fields)


class Core(wiring.Component):
    """The EPS core in the default clock domain.

    Ports:
        control (in, AXI4-Lite).
        reads, writes (out, the halves of AXI4): by port. A port on which nothing is read, or written, stays silent.
        interrupt (out, 1).

    Args:
        lane: makes one lane, as for `Lanes`.
    """

    def __init__(self, config: CoreConfig, lane: Callable[[], Any], *, faults: Faults | None = None) -> None:
        self._config = config
        self._lane = lane
        self.faults = faults
        bits = config.shape.beat_bits
        super().__init__(
            {
                "control": In(axi.lite(ADDRESS_BITS)),
                "reads": Out(axi.read(bits)).array(config.ports),
                "writes": Out(axi.write(bits)).array(config.ports),
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        shape = self._config.shape
        m.submodules.control = control = Control(constants(self._config), faults=self.faults)
        m.submodules.supervisor = supervisor = Supervisor(shape, faults=self.faults)
        # Whatever a batch has left behind, however it ended, is gone before the next one.
        fresh = ResetInserter(~supervisor.running)
        engine = Engine(self._config, self._lane, faults=self.faults)
        ledger = Ledger(shape, faults=self.faults)
        recorder = Recorder(shape, faults=self.faults)
        m.submodules.engine, m.submodules.ledger, m.submodules.recorder = map(fresh, (engine, ledger, recorder))
        wiring.connect(m, wiring.flipped(self.control), control.bus)
        self._batch(m, control, supervisor, engine, ledger, recorder)
        readers = self._readers(m, supervisor, engine)
        writers = self._writers(m, supervisor, engine, ledger, recorder)
        self._faults(m, control, supervisor, readers, writers)
        self._counters(m, control, supervisor, engine)
        return m

    def _batch(
        self,
        m: Module,
        control: Control,
        supervisor: Supervisor,
        engine: Engine,
        ledger: Ledger,
        recorder: Recorder,
    ) -> None:
        below = self._config.shape.below
        m.d.comb += [
            self.interrupt.eq(control.interrupt),
            *(
                getattr(supervisor, name).eq(getattr(control, name))
                for name in ("start", "batch_address", "completion_address", "count", "soft_reset")
            ),
            control.done.eq(supervisor.done),
            control.drained.eq(supervisor.drained),
            control.peek.eq(engine.peek),
            engine.peeked.eq(control.peeked),
            engine.peeking.eq(control.peeking),
            engine.address.eq(control.batch_address >> below),
            engine.count.eq(control.count),
            engine.fetching.eq(supervisor.fetching),
            engine.in_flight.eq(ledger.count),
            engine.progress.eq(ledger.progress),
            *(getattr(ledger, name).eq(getattr(engine, name)) for name in ("issue", "entry", "nonfinite", "slot")),
            ledger.pop.eq(recorder.pop),
            recorder.address.eq(control.completion_address >> below),
            recorder.count.eq(control.count),
            recorder.report.eq(supervisor.report),
            recorder.stopped.eq(supervisor.unrecorded),
            recorder.fault.eq(supervisor.fault),
            recorder.refused_tag.eq(engine.entry.tag),
            recorder.head.eq(ledger.head),
            ledger.later_two.eq(recorder.later_two),
            supervisor.found.eq(engine.found),
            supervisor.in_flight.eq(ledger.count),
            supervisor.number.eq(recorder.number),
            supervisor.complete.eq(ledger.head.valid & ledger.head.complete),
            supervisor.quiet.eq(recorder.quiet),
        ]

    def _on(self, port: int, streams: tuple[str, ...]) -> list[int]:
        """Which of ``streams`` a port has."""
        places = self._config.port_of
        return [number for number, name in enumerate(streams) if places.get(name, 0) == port]

    def _readers(self, m: Module, supervisor: Supervisor, engine: Engine) -> dict[int, ReadPort]:
        ports = {}
        for number in range(self._config.ports):
            streams = self._on(number, READERS)
            if not streams:
                continue
            port = ReadPort(
                len(streams),
                self._config.shape,
                outstanding=self._config.outstanding,
                timeout=self._config.timeout,
                faults=self.faults,
            )
            m.submodules[f"read_port_{number}"] = ports[number] = port
            self._join(m, port, self.reads[number], supervisor)
            for place, stream in enumerate(streams):
                wiring.connect(m, engine.read_requests[stream], port.requests[place])
                m.d.comb += [engine.valid[stream].eq(port.valid[place]), engine.beats[stream].eq(port.beat)]
        return ports

    def _join(self, m: Module, port: ReadPort | WritePort, bus: Any, supervisor: Supervisor) -> None:
        wiring.connect(m, port.bus, wiring.flipped(bus))
        m.d.comb += [port.stop.eq(supervisor.stop), port.clear.eq(supervisor.clear)]

    def _writers(
        self, m: Module, supervisor: Supervisor, engine: Engine, ledger: Ledger, recorder: Recorder
    ) -> dict[int, WritePort]:
        ports = {}
        requests = [*engine.write_requests, recorder.request]
        beats = [*engine.write_beats, recorder.beats]
        for number in range(self._config.ports):
            streams = self._on(number, WRITERS)
            if not streams:
                continue
            records = len(WRITES)
            port = WritePort(
                len(streams),
                self._config.shape,
                outstanding=self._config.outstanding,
                timeout=self._config.timeout,
                lasting=streams.index(records) if records in streams else None,
                faults=self.faults,
            )
            m.submodules[f"write_port_{number}"] = ports[number] = port
            self._join(m, port, self.writes[number], supervisor)
            for place, stream in enumerate(streams):
                wiring.connect(m, requests[stream], port.requests[place])
                wiring.connect(m, beats[stream], port.beats[place])
                if stream == records:
                    m.d.comb += recorder.acknowledged.eq(port.acknowledged[place] & port.acknowledged_last)
                    continue
                said = ledger.writers[stream]
                m.d.comb += [
                    said.issued.eq(port.issued[place]),
                    said.issued_owner.eq(port.issued_owner),
                    said.acknowledged.eq(port.acknowledged[place]),
                    said.beats.eq(port.acknowledged_beats),
                    said.owner.eq(port.acknowledged_owner),
                    said.last.eq(port.acknowledged_last),
                ]
        return ports

    def _faults(
        self,
        m: Module,
        control: Control,
        supervisor: Supervisor,
        readers: dict[int, ReadPort],
        writers: dict[int, WritePort],
    ) -> None:
        halves = [
            Half(port.fault, [SOURCES.index(streams[place]) for place in self._on(number, streams)], code)
            for ports, streams, code in (
                (readers, READERS, Fault.READ_RESPONSE),
                (writers, WRITERS, Fault.WRITE_RESPONSE),
            )
            for number, port in ports.items()
        ]
        every: list[ReadPort | WritePort] = [*readers.values(), *writers.values()]
        records = writers[0]
        dead = Signal(len(STREAMS))
        halves_of = [[ports[k] for ports in (readers, writers) if k in ports] for k in range(self._config.ports)]
        m.d.comb += dead.eq(Cat(Cat(half.dead for half in halves).any() for halves in halves_of))
        found = supervisor.fault
        m.d.comb += [
            supervisor.trouble.eq(first_trouble(m, halves, self._config.shape)),
            supervisor.resting.eq(Cat(port.idle | port.dead for port in every).all()),
            supervisor.dead.eq(dead.any()),
            supervisor.unrecorded.eq(records.lost | records.dead),
            control.error_number.eq(found.number),
            control.error_address.eq(found.address),
        ]
        values = {"fault": found.code, "stream": found.source, "dead_ports": dead}
        m.d.comb += [bits_of(control.error, field).eq(values[field.name]) for field in REGISTERS["error"].fields]

    def _counters(self, m: Module, control: Control, supervisor: Supervisor, engine: Engine) -> None:
        events = {"clocks_busy": supervisor.running, "clocks_stalled": engine.starved}
        for number in range(self._config.ports):
            read, written = self.reads[number], self.writes[number]
            if self._on(number, READERS):
                events[f"beats_read_{number}"] = read.rvalid & read.rready
            if self._on(number, WRITERS):
                events[f"beats_written_{number}"] = written.wvalid & written.wready
        m.submodules.counters = counters = Counters(len(events))
        m.d.comb += counters.events.eq(Cat(events.values()))
        for number, name in enumerate(events):
            m.d.comb += getattr(control, name).eq(counters.counts[number])
