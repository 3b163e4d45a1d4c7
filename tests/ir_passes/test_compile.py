"""A compiled model computes what the model computes, for every size, and says what it did."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
import ir_passes
from ir_passes.config import CompilationConfig, DynamicShapesType
from ir_passes.errors import BackendError, CompileError
from ir_passes.programs.compiled_model import CompiledModel

from .test_model_trace import DIMS, Model, arguments

LIMITS = {"tokens": 16}
SIZES = (6, 1, 2, 3, 5, 7, 11, 16)


def compile_model(model: nn.Module, **config: Any) -> CompiledModel:
    settings = CompilationConfig.model_validate({"backend": "eager", **config})
    return ir_passes.compile(model, arguments(6), dynamic_dims=DIMS, limits=LIMITS, config=settings)


def check(compiled: Callable[..., Any], model: nn.Module, sizes: tuple[int, ...] = SIZES) -> None:
    """Compare with the model itself; both keep a cache, so they must be two models."""
    with torch.no_grad():
        for size in sizes:
            torch.testing.assert_close(
                compiled(*arguments(size)), model(*arguments(size)), rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("kind", list(DynamicShapesType))
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_every_size_in_every_shapes_mode(kind: DynamicShapesType, backend: str) -> None:
    model = Model(3)
    compiled = compile_model(
        copy.deepcopy(model),
        backend=backend,
        dynamic_shapes_config={"type": kind, "guards": "rebuild"},
    )
    check(compiled, model)


@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_inductor_computes_the_same_with_either_provider(provider: str) -> None:
    model = Model(3)
    with ir.priority({op: [provider] for op in ("rms_norm", "fused_add_rms_norm")}):
        compiled = compile_model(copy.deepcopy(model), backend="inductor", compile_sizes=(1, 4))
        check(compiled, model)
    report = compiled.report()
    assert [str(each.sizes) for each in report.programs] == ["1..1", "4..4", "1..16"]
    assert report.selected_impls["fused_add_rms_norm"] == {provider: 12}


def test_layers_are_compiled_once() -> None:
    (program,) = compile_model(Model(8)).report().programs
    assert (program.num_pieces, len(program.pieces)) == (9, 3)
    assert sum(piece.num_uses for piece in program.pieces) == 9


def test_ranges_share_equal_pieces_and_meet_at_endpoints() -> None:
    model = Model(2)
    compiled = compile_model(copy.deepcopy(model), compile_ranges_endpoints=(4, 8))
    report = compiled.report()
    assert [str(each.sizes) for each in report.programs] == ["1..4", "5..8", "9..16"]
    assert report.programs[0].pieces == report.programs[2].pieces
    check(compiled, model)


def test_no_clone_is_left_in_layers_that_give_their_activations_away() -> None:
    with ir.priority({"fused_add_rms_norm": ["vllm_c"]}):
        (program,) = compile_model(Model(4)).report().programs
    rows = [row for piece in program.pieces for row in piece.clones]
    assert rows
    assert not [row for row in rows if row.is_kept]


@pytest.mark.parametrize("size", [0, 17])
def test_size_beyond_what_was_compiled_is_refused(size: int) -> None:
    compiled = compile_model(Model(1))
    with pytest.raises(CompileError, match=rf"{size} tokens are outside .* 1\.\.16"):
        compiled(*arguments(size))


def test_replaced_tensors_are_used_after_rebind() -> None:
    model, other = Model(1), Model(1)
    compiled = compile_model(model)
    with torch.no_grad():
        for target, source in ((model, 3.0), (other, 3.0)):
            target.norm = nn.Parameter(torch.full_like(target.norm, source))
    compiled.rebind()
    check(compiled, other)


class Branching(nn.Module):
    """Takes another way for one token, as models with a decode path do."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 1 else x * 3


@pytest.mark.parametrize("kind", ["backed", "backed_size_oblivious"])
def test_branch_on_the_batch_is_never_wrong(kind: str) -> None:
    def compiled(guards: str) -> CompiledModel:
        return ir_passes.compile(
            Branching(),
            (torch.ones(6, 2),),
            dynamic_dims={"x": 0},
            limits=LIMITS,
            config=CompilationConfig.model_validate(
                {"backend": "eager", "dynamic_shapes_config": {"type": kind, "guards": guards}}
            ),
        )

    rebuilt = compiled("rebuild")
    for size in (1, 2, 16):
        x = torch.ones(size, 2)
        assert torch.equal(rebuilt(x), Branching()(x))
    assert "1..1" in [str(each.sizes) for each in rebuilt.report().programs]
    with pytest.raises(CompileError, match=r"does not hold for tokens=1"):
        compiled("fail")


def test_branch_on_an_unbacked_size_names_the_line() -> None:
    with pytest.raises(ir_passes.TraceError, match=r"test_compile\.py"):
        ir_passes.compile(Branching(), (torch.ones(6, 2),), dynamic_dims={"x": 0})


def test_result_may_be_a_nest() -> None:
    def model(x: Tensor) -> dict[str, Any]:
        return {"pair": (x + 1, [x * 2]), "none": None, "count": 3}

    compiled = ir_passes.compile(
        model, (torch.ones(6, 2),), dynamic_dims={"x": 0}, config=CompilationConfig(backend="eager")
    )
    result = compiled(torch.ones(2, 2))
    assert (result["none"], result["count"]) == (None, 3)
    assert torch.equal(result["pair"][0], torch.full((2, 2), 2.0))
    assert torch.equal(result["pair"][1][0], torch.full((2, 2), 2.0))


def test_model_that_writes_attributes_still_writes_them() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.last = x + 1
            return x * 2

    model = Counting()
    compiled = ir_passes.compile(
        model, (torch.ones(6, 2),), dynamic_dims={"x": 0}, config=CompilationConfig(backend="eager")
    )
    assert torch.equal(compiled(torch.ones(3, 2)), torch.full((3, 2), 2.0))
    assert model.last is not None
    assert torch.equal(model.last, torch.full((3, 2), 2.0))


def test_declared_dims_are_used() -> None:
    @ir_passes.support_compile()
    class Doubling(nn.Module):
        def forward(self, x: Tensor, factor: float = 2.0) -> Tensor:
            return x * factor

    compiled = ir_passes.compile(
        Doubling(), (torch.ones(6, 2),), config=CompilationConfig(backend="eager")
    )
    assert torch.equal(compiled(torch.ones(9, 2)), torch.full((9, 2), 2.0))


@pytest.mark.parametrize("dims", [{}, {"y": 0}])
def test_declaring_a_dim_that_is_not_there_is_an_error(dims: dict[str, int]) -> None:
    with pytest.raises(CompileError, match="parameters of `forward`"):

        @ir_passes.support_compile(dims)
        class _Wrong(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x


def test_report_is_text_with_selections_reasons_and_guards() -> None:
    text = ir_passes.format_compile_report(compile_model(Model(2)).report())
    assert "token counts 1..16: 3 pieces, 3 distinct" in text
    assert "reads layout `panel16`, and the weight lies in `plain`" in text
    assert "fuse_add_rms_norm" in text


def test_stages_are_dumped(tmp_path: Path) -> None:
    compile_model(Model(2), debug_dump_path=tmp_path)
    names = {each.name for each in (tmp_path / "tokens_1_to_16").iterdir()}
    assert {
        "00-traced.txt",
        "computation_graph.py",
        "piece_1.lowered.txt",
        "selections.txt",
    } <= names
    text = (tmp_path / "tokens_1_to_16" / "computation_graph.py").read_text()
    compile(text, "computation_graph.py", "exec")
    assert "def program(" in text


def test_unknown_backend_is_named_with_a_suggestion() -> None:
    with pytest.raises(BackendError, match=r"`inducter`.*`inductor`"):
        compile_model(Model(1), backend="inducter")


def test_static_size_beyond_the_limit_is_refused() -> None:
    with pytest.raises(CompileError, match=r"`compile_sizes` names \[17\], .* at most 16 tokens"):
        compile_model(Model(1), compile_sizes=(4, 17))


def test_unknown_option_of_inductor_is_named() -> None:
    with pytest.raises(BackendError, match="no option `max_autotone`"):
        compile_model(Model(1), backend="inductor", inductor_compile_config={"max_autotone": True})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: (x, 3.0), r"`factor` is 3\.0, not 2\.0"),
        (lambda x: (x, 2), r"`factor` is 2, not 2\.0"),
        (lambda x: (x.double(),), r"`x` is torch\.float64, not torch\.float32"),
        (lambda x: (x[:, :1].expand(-1, 2),), r"`x` is of strides \(1, 0\)|of strides"),
        (lambda x: (x.repeat(1, 2),), r"`x` is of shape \(6, 4\), not \(any, 2\)"),
        (lambda x: (x[None],), r"`x` is of shape \(1, 6, 2\)"),
        (lambda x: (None,), "`x` is a NoneType"),
    ],
)
def test_argument_of_another_kind_is_refused(call: Any, message: str) -> None:
    def model(x: Tensor, factor: float = 2.0) -> Tensor:
        return x * factor

    compiled = ir_passes.compile(
        model, (torch.ones(6, 2),), dynamic_dims={"x": 0}, config=CompilationConfig(backend="eager")
    )
    assert compiled(torch.ones(3, 2)).sum() == 12
    with pytest.raises(CompileError, match=message):
        compiled(*call(torch.ones(6, 2)))


def test_argument_that_needs_a_gradient_is_refused() -> None:
    compiled = ir_passes.compile(
        lambda x: x * 2, (torch.ones(6, 2),), config=CompilationConfig(backend="eager")
    )
    x = torch.ones(6, 2, requires_grad=True)
    with pytest.raises(CompileError, match="requires grad while grad mode is on"):
        compiled(x)
    with torch.no_grad():
        assert compiled(x).sum() == 24


def test_example_that_is_passed_twice_is_refused() -> None:
    x = torch.ones(6, 2)
    with pytest.raises(ir_passes.TraceError, match="passed twice"):
        ir_passes.compile(lambda a, b: a + b, (x, x))


def test_donated_argument_that_shares_memory_is_refused() -> None:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ir.ops.fused_add_rms_norm.maybe_inplace(x, y, None, 1e-5)

    with ir.priority({"fused_add_rms_norm": ["vllm_c"]}):
        compiled = ir_passes.compile(
            model,
            (torch.ones(6, 8), torch.ones(6, 8)),
            dynamic_dims={"x": 0, "y": 0},
            config=CompilationConfig(backend="eager"),
        )
        x, y = torch.randn(3, 8), torch.randn(3, 8)
        wanted = ir.ops.fused_add_rms_norm(x, y, None, 1e-5)
        torch.testing.assert_close(compiled(x.clone(), y.clone()), wanted, rtol=0, atol=0)
        with pytest.raises(ir.DonationError, match="shares memory with another input"):
            compiled(x, x)


def test_model_that_writes_its_buffers_and_arguments_in_place() -> None:
    class Counting(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))
            self.weight = nn.Parameter(torch.full((2,), 3.0), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(x.sum(0))
            x.mul_(2)
            return x * self.weight

    model, other = Counting(), Counting()
    compiled = ir_passes.compile(
        model, (torch.ones(6, 2),), dynamic_dims={"x": 0}, config=CompilationConfig(backend="eager")
    )
    for size in (1, 5):
        x, y = torch.ones(size, 2), torch.ones(size, 2)
        assert torch.equal(compiled(x), other(y))
        assert torch.equal(x, y)
        assert torch.equal(model.count, other.count)
