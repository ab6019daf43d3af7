"""``relay-eps hw``: the Verilog of the lanes, and what it costs. Amaranth is imported when it is needed."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer

from relay_eps_hw.targets import Target

#: Set to 1 for tracebacks.
DEBUG_VARIABLE = "RELAY_EPS_DEBUG"

app = typer.Typer(help="The gateware: generate its Verilog, and see area and clock.", no_args_is_help=True)


class Depth(str, Enum):
    """How deep the lanes' pipelines are."""

    DEEP = "deep"
    SHALLOW = "shallow"


Lanes = Annotated[int | None, typer.Option("--lanes", help="Lanes side by side: 1 (if left out), 2, 4, 8 or 16.")]


@contextmanager
def reported() -> Iterator[None]:
    """Turn what a user can meet into a line on stderr and exit code 1, and Ctrl-C into 130.

    The host's own command line does the same for its errors; neither package imports the other.
    """
    # Amaranth minds components that are only asked for their ports, or were refused.
    warnings.filterwarnings("ignore", ".* created but never used")
    # As an exception it ends the tools that run, and what they have written is cleared away.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    except ModuleNotFoundError as error:
        _stop(error, f"the gateware needs {error.name}: pip install 'relay-eps[hw]'")
    except BrokenPipeError:
        # The reader of standard output has seen enough; typer ends quietly.
        raise
    except OSError as error:
        _stop(error, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (ValueError, RuntimeError) as error:
        _stop(error, str(error))
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None


def _stop(error: BaseException, text: str) -> None:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        raise error
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(1) from None


@app.command()
def verilog(
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write it; - for standard output.")],
    lanes: Lanes = None,
    depth: Annotated[
        Depth, typer.Option(help="Deep for a device, shallow for fast simulation; the bits are equal.")
    ] = Depth.DEEP,
    target: Annotated[Target, typer.Option(help="What the multipliers are made of.")] = Target.GENERIC,
) -> None:
    """Write the AdamA lanes as one Verilog file. The same text each time, from any folder."""
    with reported():
        from relay_eps_hw.lane.timing import DEEP, SHALLOW
        from relay_eps_hw.verilog import lanes_verilog

        if str(output) != "-":
            _check_writable(output, "-o")
        depths = DEEP if depth is Depth.DEEP else SHALLOW
        lanes = 1 if lanes is None else lanes
        text = lanes_verilog(lanes, depths=depths, target=target)
        if str(output) == "-":
            if sys.stdout is None:
                raise ValueError("standard output is closed: name a file with -o")
            sys.stdout.write(text)
        else:
            write_whole(output, text)
            typer.echo(f"{output}: {lanes} lane{'s' if lanes > 1 else ''}, {len(text) // 1024} KiB")


@app.command()
def report(
    lanes: Lanes = None,
    unit: Annotated[str | None, typer.Option(help="A float unit instead of the lanes, such as add.")] = None,
    depth_sweep: Annotated[
        bool, typer.Option("--depth-sweep", help="The unit at every depth: up to 36 minutes.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, max=9, help="Placements on ECP5; the clock is their median.")] = 3,
    json: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file too.")] = None,
) -> None:
    """Area on xc7 and UltraScale+ (Yosys), area and clock on ECP5-85 speed 8 (nextpnr). A lane takes ten minutes."""
    with reported():
        from relay_eps_hw.synthesis import report as reports

        if depth_sweep and unit is None:
            raise ValueError("--depth-sweep needs --unit: the lanes have one deep and one shallow form")
        if unit is not None and lanes is not None:
            raise ValueError("--unit measures a unit instead of the lanes: leave one of --unit and --lanes out")
        if json is not None:
            _check_writable(json, "--json")
        rows = reports.measure(reports.designs(1 if lanes is None else lanes, unit, depth_sweep), range(1, seeds + 1))
        reports.show(rows)
        if json is not None:
            write_whole(json, reports.to_json(rows))


def _check_writable(path: Path, option: str) -> None:
    """Refuse at once what could not be written after minutes of work."""
    if path.exists() and not path.is_file() and not path.is_dir():
        if not os.access(path, os.W_OK):
            raise ValueError(f"{path} cannot be written to: name another file with {option}")
        return
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist: create it, or name another with {option}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file with {option}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"the folder {path.parent} cannot be written to: name another with {option}")


def _umask() -> int:
    # There is no way to read it but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_whole(path: Path, text: str) -> None:
    """Write all of ``text`` or leave what was there; a device, such as /dev/null, is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    target = path.resolve()
    with NamedTemporaryFile("w", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        try:
            file.write(text)
            file.close()
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, target)
        except BaseException:
            # Ctrl-C too: no half of a file is left, under any name.
            os.unlink(file.name)
            raise
