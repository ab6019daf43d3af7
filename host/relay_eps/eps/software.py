"""The software EPS: host memory, and the compiled kernels on worker threads of their own."""

from __future__ import annotations

from relay_eps.eps.formats import Format
from relay_eps.eps.host_server import HostEPS
from relay_eps.eps.storage import Allocate


class SoftwareEPS(HostEPS):
    """The eager parameter server that ordinary machines use; gives the golden model's bits.

    ``threads`` is the number of worker threads (by default what this process may use of the machine);
    ``instruction_set`` asks for one path of the kernels (by default the fastest that the processor has);
    `capabilities.name` tells what was chosen. ``allocate`` makes the sections' memory, pinned for a GPU for instance.

    Raises ContractError for a wire format, a number of threads or an instruction set that cannot be had, and
    RelayEpsError, with the cause, where the package was installed without its kernels.
    """

    def __init__(
        self,
        *,
        wire: Format | str = Format.FP32,
        threads: int | None = None,
        instruction_set: str | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        # Here and not above: boards without the compiled module import the package too.
        from relay_eps.eps.kernels import KernelArithmetic

        wire = Format.parse(wire)
        arithmetic = KernelArithmetic(threads=threads, instruction_set=instruction_set)
        super().__init__(arithmetic, name=f"software ({arithmetic.name})", wire=wire, allocate=allocate)
