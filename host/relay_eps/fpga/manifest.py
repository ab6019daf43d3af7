"""What lies beside a bitstream: which board and core it is, its build id, and the hashes of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relay_eps.errors import BoardError
from relay_eps.fpga.transport import Bank

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """A bitstream, built or to be built.

    Attributes:
        board: the folder's name, such as "pynq-z2".
        title: the board's name to people.
        part: the FPGA.
        lanes, ports, beat_bytes, burst_beats, address_bits: of each core.
        cores: for each core and port, names of the banks that the port reaches.
        banks: bytes by name; None where the running system decides.
        clock_mhz: of the cores.
        build_id: what the core's register holds, 64 bits.
        sources: SHA-256 of what it is built from, as its builder defines that.
        files: SHA-256 of each built file, by name; empty where nothing has been built.
        tools: name and version of what built it; empty where nothing has been built.
        results: what the build reached, such as the clock after routing and the seed.
    """

    board: str
    title: str
    part: str
    lanes: int
    ports: int
    beat_bytes: int
    burst_beats: int
    address_bits: int
    cores: tuple[tuple[tuple[str, ...], ...], ...]
    banks: Mapping[str, int | None]
    clock_mhz: float
    build_id: int
    sources: str
    files: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder; BoardError, with the file and what to do, where there is none that can be used."""
        path = folder / NAME
        try:
            record = json.loads(path.read_text())
            version = record.pop("format")
            if version != FORMAT:
                raise BoardError(
                    f"{path} has the format {version}, and this driver reads {FORMAT}: update the older one"
                )
            record["build_id"] = int(record["build_id"], 16)
            record["cores"] = tuple(tuple(tuple(banks) for banks in core) for core in record["cores"])
            return cls(**record)
        except OSError as error:
            raise BoardError(
                f"{path} cannot be read ({error.strerror}): it comes with the bitstream, copy both"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BoardError(f"{path} is no manifest ({error}): copy it again from where the bitstream is") from error

    def text(self) -> str:
        """As the file holds it."""
        record = {"format": FORMAT, **asdict(self), "build_id": f"{self.build_id:#018x}"}
        return json.dumps(record, indent=2) + "\n"

    def check(self, folder: Path) -> None:
        """Compare every built file with its hash; BoardError names the first that is missing or another one."""
        for name, wanted in self.files.items():
            path = folder / name
            if not path.is_file():
                raise BoardError(f"{path} is missing: copy every file of the bitstream's folder, manifest included")
            if hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
                raise BoardError(f"{path} is not the file that {NAME} describes: copy the whole folder again")

    def places(self) -> tuple[tuple[Bank, ...], tuple[tuple[tuple[int, ...], ...], ...]]:
        """The banks, and the places of those that each core's ports reach, as `BoardInfo` has them."""
        names = list(self.banks)
        cores = tuple(tuple(tuple(names.index(bank) for bank in port) for port in core) for core in self.cores)
        return tuple(Bank(name, size) for name, size in self.banks.items()), cores
