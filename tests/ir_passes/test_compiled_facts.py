"""What a compile says of itself is complete, the same each time, and no more than the truth."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
import ir_passes
from ir_passes.programs.report import CompileReport

from .compiled import compile_whole
from .compiled_calls import IN_PLACE, NATIVE, TOKENS, compile_call, rows
from .graphs import random_tensors, trace
from .kernel_toy import Kernels
from .test_model_trace import DIMS, Model, arguments

ROWS = ("T", 8)
PATHS = " ".join(DIMS)


def table(report: CompileReport) -> list[tuple[Any, ...]]:
    """Every selection of a report with its place and its reasons."""
    return [
        (str(program.sizes), piece.name, piece.num_uses, row)
        for program in report.programs
        for piece in program.pieces
        for row in piece.selections
    ] + [(str(program.sizes), row) for program in report.programs for row in program.splitting]


def test_table_of_selections_is_complete_and_the_same_each_time() -> None:
    with ir.priority(IN_PLACE):
        reports = [
            compile_call(Model(2), arguments(TOKENS), PATHS, compile_ranges_endpoints=(4,)).report()
            for _ in range(2)
        ]
    first, second = map(table, reports)
    assert first == second
    counted = {op: sum(counts.values()) for op, counts in reports[0].selected_impls.items()}
    # Two ranges of two layers, and the norm at the end, which becomes a fused one.
    assert counted == {
        "fused_add_rms_norm": 2 * 3,
        "linear": 2 * 4,
        "paged_attention": 2 * 2,
    }
    assert all("test_model_trace.py:" in row[-1].line for row in first)


def test_provider_that_cannot_run_here_is_listed_with_the_reason_of_eager_mode() -> None:
    asked = {"fused_add_rms_norm": ["aiter", "xpu_kernels", "vllm_c"]}
    with ir.priority(asked):
        eager = ir.select("fused_add_rms_norm", rows(5), rows(5), None, 1e-5)
        report = compile_call(Model(1), arguments(TOKENS), PATHS).report()
    found = {row.provider: row.rejections for *_, row in table(report) if row.op == eager.op.name}
    assert found == {eager.provider: eager.rejections}
    assert [each.provider for each in eager.rejections][:2] == ["aiter", "xpu_kernels"]
    text = ir_passes.format_compile_report(report)
    for each in eager.rejections:
        assert f"{each.provider}: {each.reason}" in text


def test_compiling_uses_nothing() -> None:
    """What has run is one record, what has been compiled another."""
    before = ir.selections()
    compiled = compile_call(Model(1), arguments(TOKENS), PATHS)
    assert ir.selections() == before
    assert set(compiled.selected_impls) == {"fused_add_rms_norm", "linear", "paged_attention"}


FROM_TEXT = """
def twofold(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
    return x * factor if weight is None else weight * (factor * x)

def model(x):
    return scale(x, None, 3.0) + 1
"""


@pytest.mark.parametrize("is_partial", [False, True])
def test_code_without_a_file_is_compiled(kernels: Kernels, is_partial: bool) -> None:
    """As in a notebook, or at a prompt."""
    names: dict[str, Any] = {"Tensor": Tensor, "scale": kernels.scale}
    exec(FROM_TEXT, names)  # noqa: S102
    function = names["twofold"]
    kernels.scale.register_impl("typed")(functools.partial(function) if is_partial else function)
    kernels.prefer(scale=("typed",))
    program, run = compile_whole(
        trace(names["model"], ROWS, dialect=kernels.dialect), kernels.dialect
    )
    assert [row.provider for row in program.selections()] == ["typed"]
    (x,) = random_tensors(ROWS)
    torch.testing.assert_close(tuple(run(x)), (x * 3 + 1,))


def test_model_without_a_file_is_compiled() -> None:
    names: dict[str, Any] = {"ops": ir.ops}
    exec("def model(x):\n    return ops.rms_norm(x, None, 1e-5) + x\n", names)  # noqa: S102
    with ir.priority(NATIVE):
        compiled = compile_call(names["model"], (rows(TOKENS),))
        torch.testing.assert_close(compiled(rows(5)), names["model"](rows(5)))


class Workspace:
    """Memory that an implementation keeps between calls and lets grow."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.num_grown = 0

    def rows(self, x: Tensor) -> Tensor:
        if self.memory is None or self.memory.shape[0] < x.shape[0]:
            self.memory = torch.empty_like(x)
            self.num_grown += 1
        return self.memory[: x.shape[0]]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_opaque_implementation_may_keep_memory_between_calls(
    kernels: Kernels, backend: str
) -> None:
    workspace = Workspace()

    @kernels.scale.register_impl("keeping", opaque=True)
    def keeping(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return torch.mul(x, factor, out=workspace.rows(x)) + 0

    kernels.prefer(scale=("keeping",))
    whole = trace(lambda x: kernels.scale(kernels.scale(x) + 1), ROWS, dialect=kernels.dialect)
    _, run = compile_whole(whole, kernels.dialect, backend)
    assert workspace.num_grown == 0
    for num_tokens in (2, 1, 5, 2):
        (x,) = random_tensors(ROWS, tokens=num_tokens)
        torch.testing.assert_close(tuple(run(x)), ((x * 2 + 1) * 2,))
    assert workspace.num_grown == 2


def test_implementation_that_keeps_what_it_made_while_traced_is_refused(kernels: Kernels) -> None:
    """The tensor is a fake one: whoever finds it later computes with nothing."""
    kept: dict[str, Tensor] = {}

    @kernels.scale.register_impl("lazy")
    def lazy(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        if "factors" not in kept:
            kept["factors"] = torch.full((8,), factor)
        return x * kept["factors"]

    kernels.prefer(scale=("lazy",))
    whole = trace(lambda x: kernels.scale(kernels.scale(x)), ROWS, dialect=kernels.dialect)
    with pytest.raises(ir_passes.LoweringError, match=r"`lazy` .*while it was traced"):
        compile_whole(whole, kernels.dialect)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.full((8,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return ir.ops.rms_norm(x, self.norm, 1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_weights_that_require_grad_are_compiled_and_called_where_grad_is_on(
    backend: str, provider: str
) -> None:
    model = Weighted()
    assert model.norm.requires_grad
    with torch.enable_grad(), ir.priority({"rms_norm": [provider]}):
        compiled = compile_call(model, (rows(TOKENS),), backend=backend)
        found = compiled(rows(5))
    assert not found.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(found, model(rows(5)))
