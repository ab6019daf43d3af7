"""The optimizer on the host: what users of the nearest systems reported, and what happens here instead.

The names follow public reports, in the order in which this project lists them. H6: DeepSpeed issue 479. H7: DeepSpeed
issue 4687. H8: DeepSpeed issue 1635, PyTorch issue 74588. H9: a Megatron fork's issue 188. H10: prime-rl issue 3248,
Lumi issue 110. H11: ms-swift pull request 10023, PyTorch issue 101449. H12: PyTorch issue 128208. H13: DeepSpeed issue
5784, pull request 8010 (see docs/decisions.md).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from relay_eps.checkpoint.format import StoredTensor
from relay_eps.eps import AdamHyper, EagerParamServer, Format, LayerLayout, SoftwareEPS, TensorSpec, _kernels
from relay_eps.eps.contract import Capabilities
from relay_eps.eps.layout import ALIGN_ELEMENTS, Section
from relay_eps.errors import CheckpointError, ContractError, RelayError
from relay_eps.relay import ModelledLink, Relay
from tests.host.eps.bits import assert_same_bits
from tests.host.relay.following import assert_same_state, make_reference, make_relay, take_step, whole_state
from tests.host.relay.models import GROUPS, MLP, TIED, Case
from tests.host.relay.servers import ServerProxy, section
from tests.host.reports.servers import counting_server

#: Threads that are counted, for where the system shows them.
TASKS = Path("/proc/self/task")

# --- H6

WRONG: dict[str, Callable[[int], Any]] = {
    "a torch tensor": torch.zeros,
    "a tensor on another device": lambda size: torch.zeros(size, device="meta"),
    "a list": lambda size: [0.0] * size,
    "nothing": lambda size: None,
    "float64": np.zeros,
    "int8": lambda size: np.zeros(size, np.int8),
    "another length": lambda size: np.zeros(size + 1, np.float32),
    "every other element": lambda size: np.zeros(2 * size, np.float32)[::2],
}
CALLS: dict[str, Callable[[EagerParamServer, Any], Any]] = {
    "fold": lambda s, g: s.fold("the layer", g, AdamHyper(), first=True),
    "fold_apply": lambda s, g: s.fold_apply("the layer", g, AdamHyper(), first=True),
    "accumulate": lambda s, g: s.accumulate("the layer", g, first=True),
    "fetch": lambda s, g: s.fetch("the layer", g),
    "write": lambda s, g: s.write("the layer", Section.P, g),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", WRONG)
def test_H6_what_is_no_host_array_is_refused_by_layer_and_changes_nothing(call: str, wrong: str) -> None:
    layout = LayerLayout("the layer", (TensorSpec("weight", (40,)),))
    with SoftwareEPS(threads=1) as server:
        server.create(layout)
        server.write("the layer", Section.P, np.ones(layout.size, np.float32)).result()
        with pytest.raises(ContractError, match="'the layer'"):
            CALLS[call](server, WRONG[wrong](layout.size))
        assert server.applies("the layer") == 0
        assert server.read("the layer", Section.P).result()[0] == 1
        assert not server.read("the layer", Section.M).result().any()


@pytest.mark.parametrize("which", ["0.weight", "1.2.bias", "4.bias"])
def test_H6_a_parameter_without_values_is_named_and_the_others_stay(which: str) -> None:
    model = MLP.make()
    owner, _, name = which.rpartition(".")
    setattr(model.get_submodule(owner), name, nn.Parameter(torch.empty_like(model.get_parameter(which), device="meta")))
    kept = {n: p.detach().clone() for n, p in model.named_parameters() if n != which}
    with pytest.raises(RelayError, match=rf"{which}.* meta"):
        Relay(model)
    assert all(torch.equal(model.get_parameter(n), value) for n, value in kept.items())


def test_H6_a_batch_that_cannot_come_to_the_device_leaves_everything_as_it_was() -> None:
    with make_relay(MLP, micro_batch=4) as relay:
        take_step(relay, MLP, 0, 6)
        before = whole_state(relay)
        batch = MLP.batch(1, 6)
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            relay.step(batch.inputs.to("meta"), batch.targets, MLP.loss)
        assert {n: v.tobytes() for n, v in whole_state(relay).items()} == {n: v.tobytes() for n, v in before.items()}
        take_step(relay, MLP, 1, 6)


# --- H7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("link", [None, ModelledLink()], ids=["leased", "slots"])
def test_H7_a_16_bit_model_trains_on_its_values_in_fp32(dtype: torch.dtype, link: ModelledLink | None) -> None:
    plain = make_reference(MLP, MLP.make().to(dtype).float(), micro_batch=5)
    with make_relay(MLP, MLP.make().to(dtype), micro_batch=5, link=link) as relay:
        assert_same_state(relay.state_dict(), plain.model.state_dict())
        for step in range(2):
            assert take_step(relay, MLP, step, 12).loss == plain.step(MLP.batch(step, 12)).loss
        assert_same_state(relay.state_dict(), plain.model.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("mode", ["exact", "adama"])
def test_H7_layers_that_compute_in_16_bits_update_fp32_masters(dtype: torch.dtype, wire: str, mode: str) -> None:
    with make_relay(MLP, MLP.make().to(dtype), micro_batch=5, wire=wire, mode=mode) as relay:
        before = relay.state_dict()
        for step in range(2):
            take_step(relay, MLP, step, 12)
        after = relay.state_dict()
        assert {value.dtype for value in after.values()} == {torch.float32}
        assert all(not torch.equal(before[name], after[name]) for name in before)
        # More bits than the wire carries: what 16-bit storage would have rounded away.
        low = after["0.weight"].view(torch.int32) & 0xFFF
        assert low.any()
        for eps in relay.eps_layers:
            sent = np.empty(eps.layout.size, Format.parse(wire).carrier)
            relay.server.fetch(eps.name, sent).result()
            assert_same_bits(sent, relay.server.read(eps.name, Section.WIRE).result())


def test_H7_what_fp32_cannot_hold_is_refused_by_name_and_left_as_it_was() -> None:
    class Packed(nn.Module):
        def __init__(self, values: torch.Tensor) -> None:
            super().__init__()
            self.packed = nn.Parameter(values, requires_grad=False)
            self.weight = nn.Parameter(torch.ones(3))

    for dtype in (torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64, torch.float64):
        plain, packed = nn.Linear(3, 3), Packed(torch.ones(3, dtype=dtype))
        before = plain.weight.detach().clone()
        with pytest.raises(RelayError, match=rf"1\.packed.*{str(dtype).removeprefix('torch.')}"):
            Relay(nn.Sequential(plain, packed))
        assert torch.equal(plain.weight, before)
        assert packed.packed.dtype is dtype


# --- H8, H9: times are measured in benchmarks/; here is what they follow from


def linears(layers: int, tensors: int, elements: int) -> nn.Sequential:
    """Layers of many small tensors, of ``elements`` each."""

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList(nn.Parameter(torch.full((elements,), 0.01)) for _ in range(tensors))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.stack(list(self.parts)).sum()

    return nn.Sequential(*(Many() for _ in range(layers)))


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, {"fold_apply": 1}),
        ({"mode": "adama"}, {"fold": 2, "fold_apply": 1}),
        ({"max_grad_norm": 1.0}, {"accumulate": 1, "fold_apply": 1}),
        ({"link": ModelledLink()}, {"fold_apply": 1, "convert": 2}),
    ],
    ids=["exact", "adama", "deferred", "slots"],
)
@pytest.mark.parametrize("tensors", [1, 7, 300])
def test_H8_H9_a_step_passes_over_a_layer_as_often_whatever_the_number_of_tensors(
    tensors: int, settings: dict[str, Any], passes: dict[str, int]
) -> None:
    # One pass that folds and applies: 28 bytes a parameter, what a fused optimizer moves. The last layer is fetched
    # once where it keeps its graph, and is held from forward to backward.
    layers, counted = 3, Counter[str]()
    server, model = counting_server(counted), linears(layers, tensors, 40)
    with server, Relay(model, server=server, micro_batch=2, **settings) as relay:
        counted.clear()
        relay.step(torch.ones(6, 1), torch.zeros(6, 1), nn.functional.mse_loss)
        server.synchronize()
        expected = {what: times * layers for what, times in passes.items()}
        if "convert" in expected:
            expected["convert"] -= 1
        assert counted == expected


# --- H10

LAUNCHERS: list[dict[str, str]] = [
    {"OMP_NUM_THREADS": "1"},
    {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1"},
    {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "true", "OMP_PLACES": "{0}", "KMP_AFFINITY": "compact"},
]


@pytest.mark.parametrize("environment", LAUNCHERS, ids=lambda e: f"{len(e)} variables")
def test_H10_a_launcher_that_sets_one_openmp_thread_does_not_slow_the_server(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RELAY_EPS_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    before = _threads_of_this_process()
    with SoftwareEPS() as server:
        assert f"{cores} thread" in server.capabilities.name
        if before:
            # The dispatcher is one of the kernels' threads. An older server's thread may end meanwhile.
            assert len(_threads_of_this_process() - before) == cores
    assert torch.get_num_threads() == 1, "and torch's own threads are left as they were set"


@pytest.mark.parametrize("processes", [1, 2, 3, 64])
def test_H10_the_processes_of_one_machine_share_its_cores(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAY_EPS_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    with SoftwareEPS() as server:
        share = max(1, len(os.sched_getaffinity(0)) // processes)
        assert f" {share} thread" in server.capabilities.name


def test_H10_a_budget_that_is_stated_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_EPS_THREADS", "3")
    with SoftwareEPS() as stated, SoftwareEPS(threads=5) as asked:
        assert " 3 threads" in stated.capabilities.name
        assert " 5 threads" in asked.capabilities.name


def _threads_of_this_process() -> set[str]:
    return {task.name for task in TASKS.iterdir()} if TASKS.exists() else set()


# --- H11

LONG = st.integers(0, 2**40)


@given(first=LONG, second=LONG)
def test_H11_offsets_are_exact_beyond_31_and_32_bits(first: int, second: int) -> None:
    layout = LayerLayout("long", (TensorSpec("a", (first,)), TensorSpec("b", (second,)), TensorSpec("c", (3,))))
    a, b, c = layout.slots
    assert (a.start, a.stop) == (0, first)
    assert b.start % ALIGN_ELEMENTS == 0
    assert a.stop <= b.start < a.stop + ALIGN_ELEMENTS
    assert (b.stop - b.start, c.stop - c.start) == (second, 3)
    assert layout.nbytes(Format.FP32) == 4 * layout.size >= 4 * (first + second + 3)
    assert StoredTensor("a/p", "F32", (first,)).nbytes == 4 * first


@given(length=st.integers(0, 2**62), chunk=st.integers(1, 2**20).map(lambda n: 32 * n), share=st.floats(0, 1))
def test_H11_chunks_of_a_pass_cover_every_element_once_at_any_length(length: int, chunk: int, share: float) -> None:
    count = _kernels.chunk_bounds(length, chunk, 0)[0]
    assert count == -(-length // chunk)
    for index in {0, int(share * (count - 1)), count - 1} if count else ():
        assert _kernels.chunk_bounds(length, chunk, index)[1:] == [index * chunk, min(length, (index + 1) * chunk)]


def test_H11_more_elements_than_a_server_takes_are_refused_and_not_cut_off() -> None:
    # 2**44 elements: a 32-bit length would see none of them.
    with SoftwareEPS(threads=1) as server:
        with pytest.raises(ContractError, match=r"'too long'.*211,106,232,532,992 bytes"):
            server.create(LayerLayout("too long", (TensorSpec("w", (2**22, 2**22)),)))
        assert server.layers() == ()


# --- H12


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "adama"}, {"max_grad_norm": 1.0}], ids=["exact", "adama", "deferred"]
)
def test_H12_the_device_is_asked_for_as_many_numbers_whatever_the_number_of_parameters(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU each of these waits for the device: a few for each loss, sum and norm, none for a parameter or its step.
    asked = Counter[str]()
    for name in ("item", "tolist", "__float__", "__int__", "__bool__", "__index__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, _counted(asked, name, getattr(torch.Tensor, name)))

    def count(tensors: int) -> Counter[str]:
        with Relay(linears(3, tensors, 4), micro_batch=2, **settings) as relay:
            relay.step(torch.ones(6, 1), torch.zeros(6, 1), nn.functional.mse_loss)
            asked.clear()
            relay.step(torch.ones(6, 1), torch.zeros(6, 1), nn.functional.mse_loss)
            return +asked

    few = count(1)
    assert count(50) == few
    assert few.total() > 0, "the losses, at least, are asked for"


def _counted(asked: Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        asked[name] += 1
        return call(tensor, *args, **kwargs)

    return counted


@pytest.mark.parametrize("case", [MLP, GROUPS, TIED], ids=str)
def test_H12_the_step_counter_is_a_number_of_the_host(case: Case) -> None:
    with make_relay(case, micro_batch=5) as relay:
        for step in range(3):
            take_step(relay, case, step, 12)
        for eps in relay.eps_layers:
            t = relay.server.applies(eps.name)
            assert type(t) is int
            assert t == (3 if eps.trainable else 0)


# --- H13: 16-bit states are planned; this is the room that is left for them


def test_H13_how_a_section_is_stored_is_data_that_a_server_states() -> None:
    with SoftwareEPS(threads=1, wire="bf16") as server:
        stated = {each.section: each.format for each in server.capabilities.sections}
        assert stated == {**dict.fromkeys(Section, Format.FP32), Section.WIRE: Format.BF16}
        server.create(LayerLayout("layer", (TensorSpec("w", (100,)),)))
        kept = (Section.P, Section.M, Section.V, Section.WIRE)
        assert server.stored_bytes() == sum(server.layout("layer").nbytes(stated[each]) for each in kept)
        for each in kept:
            assert server.read("layer", each).result().dtype == stated[each].carrier


class NarrowMoments(ServerProxy):
    """States that it stores m in 16 bits."""

    @property
    def capabilities(self) -> Capabilities:
        stated = self.inner.capabilities
        sections = tuple(replace(s, format=Format.BF16) if s.section is Section.M else s for s in stated.sections)
        return replace(stated, sections=sections)


def test_H13_a_checkpoint_of_other_state_types_is_refused_by_name(tmp_path: Path) -> None:
    with make_relay(MLP) as relay:
        relay.save(tmp_path)
    with NarrowMoments() as server, make_relay(MLP, server=server) as relay:
        with pytest.raises(CheckpointError, match=r"number format: 0\.weight/m"):
            relay.load(tmp_path)
        assert not section(server, "0.weight", Section.M).any()
