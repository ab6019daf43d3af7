"""Which streams each operation uses: what the core checks and moves, and what the host makes room for."""

from __future__ import annotations

from relay_eps_hw.interface.codes import Opcode

#: By operation: the streams read, and written. A first accumulate does not read the sum.
USES: dict[Opcode, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Opcode.FOLD: (("g", "m", "v"), ("m", "v")),
    Opcode.APPLY: (("m", "v", "p"), ("p", "wire")),
    Opcode.FOLD_APPLY: (("g", "m", "v", "p"), ("m", "v", "p", "wire")),
    Opcode.ACCUMULATE: (("g", "m"), ("m",)),
    Opcode.FETCH: (("p",), ("wire",)),
    Opcode.COPY: (("p",), ("wire",)),
    Opcode.FILL: ((), ("wire",)),
    Opcode.BARRIER: ((), ()),
    Opcode.IDENTIFY: ((), ("wire",)),
}
#: Operations that pass through the lanes.
LANE_OPERATIONS = (Opcode.FOLD, Opcode.APPLY, Opcode.FOLD_APPLY, Opcode.ACCUMULATE, Opcode.FETCH)
#: Operations that write no wire copy where its address is 0.
WIRE_IS_OPTIONAL = (Opcode.APPLY, Opcode.FOLD_APPLY)
#: Operations whose wire stream has the wire format; that of the others is words.
WIRE_HAS_FORMAT = (Opcode.APPLY, Opcode.FOLD_APPLY, Opcode.FETCH)
