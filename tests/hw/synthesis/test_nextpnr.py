"""Area and clock on an ECP5: what nextpnr says, recorded, and one small design really placed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay_eps_hw.synthesis import nextpnr
from relay_eps_hw.synthesis.nextpnr import Clock, ecp5_clock, read_clock

LOG = """
Info: Device utilisation:
Info: 	          TRELLIS_IO:     3/    365     0%
Info: 	              DCCA:     1/     56     1%
Info: 	          MULT18X18D:    35/    156    22%
Info: 	              DP16KD:    10/    208     4%
Info: 	          TRELLIS_FF: 12464/  83640    14%
Info: 	        TRELLIS_COMB: 10896/  83640    13%
Info: Max frequency for clock '$glbnet$clk$TRELLIS_IO_IN': 101.00 MHz (FAIL at 250.00 MHz)
Warning: Max frequency for clock '$glbnet$clk$TRELLIS_IO_IN': 162.87 MHz (FAIL at 250.00 MHz)
"""

COUNTER = """
module counter(input clk, output reg [15:0] q);
  always @(posedge clk) q <= q + 1;
endmodule
"""


def test_the_clock_is_the_one_after_routing():
    clock = read_clock([LOG, LOG.replace("162.87", "150.00")])
    assert clock == Clock(mhz=(162.87, 150.0), lut4=10896, flip_flop=12464, multiplier=35, block_ram=10)


def test_the_median_is_over_the_seeds():
    clock = read_clock([LOG.replace("162.87", mhz) for mhz in ("170.00", "150.00", "160.00")])
    assert clock.median_mhz == 160


@pytest.mark.parametrize("missing", ["Max frequency", "TRELLIS_COMB"])
def test_a_log_that_cannot_be_read_is_an_error(missing: str):
    with pytest.raises(RuntimeError, match="another version"):
        read_clock([LOG.replace(missing, "something else")])


def test_a_small_design_is_really_placed_and_routed(tmp_path: Path):
    told: list[str] = []
    clock = ecp5_clock(COUNTER, "counter", [1, 2], tmp_path, told.append)
    assert clock is not None
    assert clock.flip_flop == 16
    assert clock.multiplier == clock.block_ram == 0
    # A carry chain takes two LUTs a slice.
    assert 16 <= clock.lut4 <= 24
    assert len(clock.mhz) == 2
    assert all(mhz > 100 for mhz in clock.mhz)
    assert [bool(re.search(f"seed {seed} of 2", told[seed])) for seed in (1, 2)] == [True, True]


def test_what_does_not_fit_is_not_placed(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(nextpnr.DEVICE, "TRELLIS_FF", 15)
    told: list[str] = []
    assert ecp5_clock(COUNTER, "counter", [1], tmp_path, told.append) is None
    assert not any("placing" in what for what in told)
