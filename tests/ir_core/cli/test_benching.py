import json

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.cli import main
from ir_core.cli.benching import bench_workloads, measure
from ir_core.cli.errors import UsageError
from ir_core.testing import Workload, fresh_registry, workloads


def _scale(*cases: Workload) -> "object":
    registry = fresh_registry()

    @registry.register_op
    def scale(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @scale.register_input_generator
    @workloads(*cases)
    def _inputs(num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, float]:
        return torch.ones(num_tokens, 8, dtype=dtype), 2.0

    scale.register_impl("far", supported=(False, "no such device"))(scale.native.fn)
    return scale


def test_measurement_relates_bytes_to_the_bandwidth_and_keeps_reasons() -> None:
    op = _scale(Workload("big", "bench", {"num_tokens": 100}, bench=True, moves_all_bytes=True))
    native, far = measure(op, torch.float32, None, 0.0, bandwidth=2.0)  # type: ignore[arg-type]
    assert (native.workload, native.provider) == ("big", "native")
    assert native.microseconds is not None
    assert native.gigabytes_per_second is not None
    moved = native.gigabytes_per_second * native.microseconds * 1e3
    assert moved == pytest.approx(2 * 100 * 8 * 4)
    assert native.share_of_bandwidth == pytest.approx(native.gigabytes_per_second / 2)
    assert (far.microseconds, far.reason) == (None, "no such device")
    assert "no such device" in far.to_text()


def test_bytes_are_not_related_to_the_time_of_what_they_do_not_bound() -> None:
    op = _scale(Workload("small", "bench", {"num_tokens": 2}, bench=True))
    native, _ = measure(op, torch.float32, None, 0.0, bandwidth=2.0)  # type: ignore[arg-type]
    assert native.microseconds is not None
    assert (native.gigabytes_per_second, native.share_of_bandwidth) == (None, None)
    assert native.to_text().split()[-3:] == ["us", "-", "-"]


def test_unmarked_workloads_are_timed_where_none_is_marked() -> None:
    names = [each.name for each in bench_workloads(_scale())]  # type: ignore[arg-type]
    assert names == ["one-token", "odd-count"]


def test_op_without_inputs_cannot_be_timed() -> None:
    registry = fresh_registry()

    @registry.register_op
    def bare(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(UsageError, match="no input generator"):
        bench_workloads(bare)


def test_command_prints_a_row_per_workload_and_provider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ir_core.cli.benching.read_bandwidth", lambda: 10.0)
    argv = ["bench", "all_reduce", "--provider", "native", "--seconds", "0", "--json"]
    assert main(argv) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["read_bandwidth"] == 10.0
    assert [row["workload"] for row in data["measurements"]] == ["one-row", "batch"]
    assert all(row["microseconds"] > 0 for row in data["measurements"])


def test_each_layout_that_a_provider_reads_is_timed_with_packed_weights() -> None:
    registry = fresh_registry([ir.ops.linear])
    op = registry["linear"]
    seen: dict[str, Tensor] = {}

    @op.register_impl("fast", layouts=("panel16", "plain"))
    def _fast(
        x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain"
    ) -> Tensor:
        seen[layout] = weight
        return x

    @op.register_input_generator
    @workloads(Workload("one", "bench", {"num_tokens": 1}, bench=True))
    def _inputs(num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return torch.ones(num_tokens, 4, dtype=dtype), torch.arange(80.0).view(20, 4).to(dtype)

    rows = measure(op, torch.float32, None, 0.0, bandwidth=2.0)
    assert [(row.provider, row.layout) for row in rows] == [
        ("native", "plain"),
        ("fast", "panel16"),
        ("fast", "plain"),
    ]
    assert "fast (panel16)" in rows[1].to_text()
    packed = op.pack(op.bind(torch.ones(1, 4), seen["plain"].clone()), "panel16")
    assert torch.equal(seen["panel16"], packed[1])
