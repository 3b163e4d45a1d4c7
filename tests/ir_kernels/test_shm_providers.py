"""Providers of collectives without other ranks: when they are passed over, and their reasons."""

from typing import Any

import pytest
import torch

import ir_core as ir
from ir_core import groups, testing
from ir_core.groups import CollectiveError, Group
from ir_kernels import all_gather, all_reduce, all_reduce_add_rms_norm, reduce_scatter
from ir_kernels.all_reduce.process_group import sum_in_order
from ir_kernels.all_reduce.segment import Segment

FOLDERS: dict[str, Any] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "all_reduce_add_rms_norm": all_reduce_add_rms_norm,
}
PROVIDERS = ("shm", "gloo", "nccl")
X = torch.zeros(4, 3)


@pytest.fixture
def collectives() -> ir.Registry:
    fresh = testing.fresh_registry([ir.registry()[name] for name in FOLDERS])
    for name, folder in FOLDERS.items():
        folder.register(fresh[name])
    return fresh


def arguments(name: str, x: torch.Tensor = X) -> tuple[Any, ...]:
    if name == "all_reduce_add_rms_norm":
        return x, x, None, 1e-5
    return (x, x.shape[0]) if name == "all_gather" else (x,)


def reasons(op: ir.IrOp, x: torch.Tensor = X) -> dict[str, str]:
    there = [each for each in PROVIDERS if each in op.implementations]
    with op.registry.priorities.override({op.name: there}):
        selection = op.select(*arguments(op.name, x))
    return {each.provider: each.reason for each in selection.rejections}


@pytest.mark.parametrize("name", FOLDERS)
def test_every_collective_has_every_provider(name: str, collectives: ir.Registry) -> None:
    found = collectives[name].implementations
    missing = {"nccl"} if name == "all_reduce_add_rms_norm" else set[str]()
    assert set(found) == {*PROVIDERS, "native"} - missing
    added = [each for each in found.values() if each.provider != "native"]
    assert all(each.opaque and each.batch_invariant for each in added)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", FOLDERS)
def test_one_rank_needs_no_provider(name: str, collectives: ir.Registry) -> None:
    found = reasons(collectives[name])
    assert found["shm"] == found["gloo"] == "is for several ranks, and axis `tp` has one"


@pytest.mark.usefixtures("compiled")
def test_a_group_without_its_transport_passes_a_provider_over(collectives: ir.Registry) -> None:
    with groups.scoped_groups(Group("tp", 0, 2, {"gloo": object()})):
        assert reasons(collectives["all_reduce"])["shm"] == (
            "the group of axis `tp` has no transport `shm`"
        )
        assert "gloo" not in reasons(collectives["all_reduce"])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.zeros(2, dtype=torch.int64), "takes float32, bfloat16, float16; x has int64"),
        (torch.zeros(()), "takes 1 to 8 dims; x has 0"),
        (torch.zeros([1] * 9), "takes 1 to 8 dims; x has 9"),
        (torch.zeros(2, device="meta"), "runs on cpu, and the activations are on meta"),
    ],
    ids=["dtype", "scalar", "dims", "device"],
)
def test_what_a_provider_cannot_take_is_its_reason(
    x: torch.Tensor, reason: str, collectives: ir.Registry
) -> None:
    with groups.scoped_groups(Group("tp", 0, 2, {"shm": Segment(0), "gloo": object()})):
        found = reasons(collectives["all_reduce"], x)
    assert found["shm"] == found["gloo"] == reason


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_only_a_gather_takes_bytes(dtype: torch.dtype, collectives: ir.Registry) -> None:
    x = torch.zeros(4, 3).to(dtype)
    with groups.scoped_groups(Group("tp", 0, 2, {"shm": Segment(0), "gloo": object()})):
        gathers, sums = (reasons(collectives[name], x) for name in ("all_gather", "all_reduce"))
    assert {"shm", "gloo"}.isdisjoint(gathers)
    name = str(dtype).removeprefix("torch.")
    assert sums["shm"] == sums["gloo"] == f"takes float32, bfloat16, float16; x has {name}"


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this torch has NCCL")
def test_nccl_says_what_is_missing(collectives: ir.Registry) -> None:
    found = collectives["all_reduce"].implementations["nccl"]
    assert (found.supported, found.unsupported_reason) == (
        False,
        "this torch was built without NCCL",
    )


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", FOLDERS)
def test_what_the_library_says_gets_op_axis_and_rank(name: str) -> None:
    group = Group("tp", 1, 3, {"shm": Segment(0)}, timeout_s=5)
    with groups.scoped_groups(group), pytest.raises(CollectiveError) as caught:
        getattr(FOLDERS[name].shm, name)(*arguments(name))
    message = str(caught.value)
    assert message.startswith(f"`{name}` by shm over axis `tp`, rank 1 of 3, timeout 5 s: ")
    assert message.endswith("the shm segment 0 is closed")


def test_16_bit_parts_are_rounded_once() -> None:
    # Each step in bfloat16 would round to 256 and lose both.
    parts = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    assert sum_in_order(parts).item() == 258.0
    assert sum_in_order(parts).dtype == torch.bfloat16
