"""The compiled kernels (sources in host/kernels). Arguments outside the contract raise ContractError."""

from numpy.typing import NDArray

def instruction_sets() -> list[str]:
    """What this build holds and this CPU can run, best first; "plain" is always last."""

def chunk_bounds(length: int, chunk: int, index: int) -> list[int]:
    """[count, begin, end]: how many chunks ``length`` elements are cut into, and where chunk ``index`` lies."""

class Kernels:
    """The arithmetic on one instruction set, with its own worker threads."""

    def __init__(self, instruction_set: str, threads: int, chunk: int) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    @property
    def threads(self) -> int: ...
    def fold(
        self,
        m: NDArray,
        v: NDArray,
        g: NDArray,
        b1: float,
        c1: float,
        b2: float,
        c2: float,
        scale: float,
        first: bool,
    ) -> None: ...
    def apply(
        self,
        p: NDArray,
        m: NDArray,
        v: NDArray,
        wire: NDArray | None,
        r2: float,
        eps: float,
        k: float,
        s: float,
    ) -> None: ...
    def fold_apply(
        self,
        p: NDArray,
        m: NDArray,
        v: NDArray,
        g: NDArray,
        wire: NDArray | None,
        b1: float,
        c1: float,
        b2: float,
        c2: float,
        scale: float,
        r2: float,
        eps: float,
        k: float,
        s: float,
        first: bool,
    ) -> None: ...
    def accumulate(self, total: NDArray, g: NDArray, first: bool) -> None: ...
    def convert(self, source: NDArray, out: NDArray) -> None: ...
    def all_finite(self, values: NDArray) -> bool: ...
    def raise_in_chunk(self, length: int, position: int) -> None:
        """For tests of the error path: RuntimeError from the chunk that holds ``position``."""
