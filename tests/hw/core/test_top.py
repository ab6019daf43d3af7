"""The core's Verilog: the ports that the vendors' tools look for, clean, and the same text each time."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest

from relay_eps_hw.core.config import ARRANGEMENTS, CoreConfig
from relay_eps_hw.core.top import core_verilog
from relay_eps_hw.interface.vendor import KERNEL, kernel_xml
from relay_eps_hw.lane.timing import SHALLOW
from tests.hw.core import bench
from tests.hw.lint import lint

#: As Vivado's packager infers interfaces from names: AXI4-Lite of UG1037 without protection, and AXI4 without IDs.
LITE = {
    "input": "awaddr awvalid wdata wstrb wvalid bready araddr arvalid rready",
    "output": "awready wready bresp bvalid arready rdata rresp rvalid",
}
FULL = {
    "output": "awaddr awlen awsize awburst awlock awcache awprot awvalid wdata wstrb wlast wvalid bready "
    "araddr arlen arsize arburst arlock arcache arprot arvalid rready",
    "input": "awready wready bresp bvalid arready rdata rresp rlast rvalid",
}
WIDTHS = {"awlen": 8, "awsize": 3, "awburst": 2, "awcache": 4, "awprot": 3, "bresp": 2, "rresp": 2, "awaddr": 64}


of_stand_ins = lru_cache(bench.of_stand_ins)


def ports(verilog: str) -> dict[str, tuple[str, int]]:
    """Direction and width of each port of the kernel's module."""
    body = re.search(rf"^module {KERNEL}\(.*?^endmodule", verilog, re.MULTILINE | re.DOTALL)
    assert body
    found = re.findall(r"^  (input|output) (?:\[(\d+):0\] )?(\w+) ;?", body[0].replace(";", " ;"), re.MULTILINE)
    return {name: (direction, int(high or 0) + 1) for direction, high, name in found}


@pytest.mark.parametrize("count", ARRANGEMENTS)
def test_the_ports_have_the_names_that_the_vendors_tools_infer_interfaces_from(count: int):
    config = CoreConfig(lanes=1, ports=count, beat_bytes=16)
    wanted = {"ap_clk": ("input", 1), "ap_rst_n": ("input", 1), "interrupt": ("output", 1)}
    got = ports(of_stand_ins(config))
    names = {f"s_axi_control_{name}": direction for direction, every in LITE.items() for name in every.split()}
    for number in range(count):
        names |= {f"m_axi_port_{number}_{name}": side for side, every in FULL.items() for name in every.split()}
    assert {name: direction for name, (direction, _) in got.items()} == names | {
        name: direction for name, (direction, _) in wanted.items()
    }
    for name, width in WIDTHS.items():
        assert got[f"m_axi_port_0_{name}"][1] == width
    assert got["m_axi_port_0_rdata"][1] == got["m_axi_port_0_wdata"][1] == 8 * 16
    assert got["m_axi_port_0_wstrb"][1] == 16
    assert got["s_axi_control_awaddr"][1] == 12


@pytest.mark.parametrize("count", ARRANGEMENTS)
def test_the_kernels_description_names_the_ports_that_there_are(count: int):
    described = set(re.findall(r'name="(m_axi_\w+)"', kernel_xml(count, 128)))
    verilog = of_stand_ins(CoreConfig(lanes=1, ports=count, beat_bytes=16))
    assert described == {name.rpartition("_")[0] for name in ports(verilog) if name.startswith("m_axi")}


@pytest.mark.parametrize(
    "config",
    [
        CoreConfig(1, 1, 16),
        pytest.param(CoreConfig(1, 1, 8, address_bits=32), marks=pytest.mark.slow),
        pytest.param(CoreConfig(4, 2, 16, burst_beats=1), marks=pytest.mark.slow),
        pytest.param(CoreConfig(2, 5, 64, burst_beats=64), marks=pytest.mark.slow),
        pytest.param(CoreConfig(16, 4, 8, burst_beats=256, latency=4), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_verilator_lints_it_clean(config: CoreConfig, tmp_path: Path):
    assert lint(of_stand_ins(config), KERNEL, tmp_path) == ""


def test_the_verilog_with_real_lanes_is_clean_and_the_same_each_time(tmp_path: Path):
    config = CoreConfig(lanes=2, ports=4, beat_bytes=8)
    text = core_verilog(config, depths=SHALLOW)
    assert lint(text, KERNEL, tmp_path) == ""
    assert core_verilog(config, depths=SHALLOW) == text
