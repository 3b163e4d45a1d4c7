"""No size is served wrongly: what a trace assumed of sizes holds, gets its own program, or is told.

Each model's source takes another way for some sizes, or asserts something of them.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
import ir_passes
from ir_passes.backends.registry import find_backend
from ir_passes.base import SizeRange
from ir_passes.compiling.compiler import Compiler
from ir_passes.compiling.recipe import Recipe
from ir_passes.compiling.sizes import broken_guards, token_sizes
from ir_passes.config import CompilationConfig, DynamicShapesType
from ir_passes.errors import CompileError, LoweringError, TraceError
from ir_passes.guards import bounds_of
from ir_passes.pipeline import Pipeline
from ir_passes.programs.compiled_model import CompiledModel
from ir_passes.tracing.dynamic_dims import shapes_mode
from ir_passes.tracing.model_trace import trace_call

from .compiled import compile_whole
from .compiled_calls import TOKENS, compile_call, rows
from .graphs import random_tensors, trace
from .kernel_toy import Kernels

KINDS = list(DynamicShapesType)
BACKED = [each for each in KINDS if each is not DynamicShapesType.UNBACKED]


def compile_shapes(
    function: Callable[..., Any],
    kind: DynamicShapesType,
    guards: str = "rebuild",
    *,
    limit: int = 16,
    example: int = TOKENS,
    **config: Any,
) -> CompiledModel:
    shapes = {"type": kind, "guards": guards}
    return compile_call(
        function, (rows(example),), limit=limit, dynamic_shapes_config=shapes, **config
    )


def assert_right(compiled: CompiledModel, function: Callable[..., Any], sizes: range) -> None:
    for size in sizes:
        with torch.no_grad():
            torch.testing.assert_close(compiled(rows(size)), function(rows(size)))


class Layer(nn.Module):
    """A norm and a product: what a decoder does with each token."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Buffer(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return ir.ops.linear(ir.ops.rms_norm(x, None, 1e-5), self.matrix) + x


@pytest.mark.parametrize(
    ("kind", "backend"),
    [*((kind, "eager") for kind in KINDS), (DynamicShapesType.BACKED, "inductor")],
)
def test_range_serves_each_of_its_sizes(kind: DynamicShapesType, backend: str) -> None:
    model = Layer()
    with ir.priority({"rms_norm": ["native"]}):
        compiled = compile_shapes(
            model, kind, limit=64, backend=backend, compile_ranges_endpoints=(1,)
        )
    assert [str(each.sizes) for each in compiled.report().programs[:2]] == ["1..1", "2..64"]
    assert_right(compiled, model, range(1, 65))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1, 2])
def test_fewest_sizes_can_be_compiled(kind: DynamicShapesType, limit: int) -> None:
    model = Layer()
    compiled = compile_shapes(model, kind, limit=limit)
    assert_right(compiled, model, range(1, limit + 1))
    with pytest.raises(CompileError, match=f"{limit + 1} tokens are outside"):
        compiled(rows(limit + 1))


def beyond_sixteen(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 16 else x * 3


def at_even_counts(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] % 2 == 0 else x * 3


def where_contiguous(x: Tensor) -> Tensor:
    return x.t() * 2 if x.t().is_contiguous() else x.t() * 3


BRANCHES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "beyond a threshold": (beyond_sixteen, 17),
    "at multiples": (at_even_counts, 1),
    "where contiguous": (where_contiguous, 1),
}


@pytest.mark.parametrize(("function", "first"), BRANCHES.values(), ids=BRANCHES.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_branch_on_a_size_is_right_for_each_size_or_refused(
    function: Callable[[Tensor], Tensor], first: int, kind: DynamicShapesType
) -> None:
    line = function.__code__.co_firstlineno + 1
    if kind is DynamicShapesType.UNBACKED:
        with pytest.raises(TraceError, match=rf'test_compiled_sizes\.py", line {line}') as caught:
            compile_shapes(function, kind)
        assert "data-dependent" in str(caught.value)
        return
    compiled = compile_shapes(function, kind, limit=20)
    assert_right(compiled, function, range(1, 21))
    assert first in {each.sizes["tokens"] for each in compiled.report().broken}
    with pytest.raises(CompileError, match=f"tokens={first}") as caught:
        compile_shapes(function, kind, "fail", limit=20)


def test_other_side_of_a_branch_is_found_from_an_example_beyond_it() -> None:
    compiled = compile_shapes(beyond_sixteen, DynamicShapesType.BACKED, limit=20, example=20)
    assert_right(compiled, beyond_sixteen, range(1, 21))


@pytest.mark.parametrize("kind", BACKED)
def test_guard_that_is_only_warned_about_is_named_with_its_line(
    kind: DynamicShapesType, caplog: pytest.LogCaptureFixture
) -> None:
    line = beyond_sixteen.__code__.co_firstlineno + 1
    with caplog.at_level(logging.WARNING, "ir_passes.compiler"):
        compile_shapes(beyond_sixteen, kind, "warn", limit=20)
    (text,) = [each.getMessage() for each in caplog.records if "guards" in each.getMessage()]
    assert f"test_compiled_sizes.py:{line}" in text
    assert "tokens=17" in text


@pytest.mark.parametrize("kind", BACKED)
def test_more_sizes_than_are_rebuilt_are_refused(kind: DynamicShapesType) -> None:
    with pytest.raises(CompileError, match=r"(?s)tokens=17.*up to 16"):
        compile_shapes(beyond_sixteen, kind, limit=64)


@pytest.mark.parametrize("others", [TOKENS, 3])
@pytest.mark.parametrize("kind", BACKED)
def test_branch_on_two_counts_being_equal_is_refused(kind: DynamicShapesType, others: int) -> None:
    """Equal and unequal examples: neither may decide for the sizes to come.

    In mode `backed` the other count is unbacked, so that the trace itself refuses the branch.
    """

    def model(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == y.shape[0] else x * 3

    shapes = {"type": kind, "guards": "rebuild"}
    config = {"backend": "eager", "dynamic_shapes_config": shapes}
    is_backed = kind is DynamicShapesType.BACKED
    named = r"(?s)Eq\(.*test_compiled_sizes.py" if is_backed else r"tokens=\d+, requests=\d+"
    with pytest.raises((TraceError, CompileError), match=named):
        ir_passes.compile(
            model,
            (rows(TOKENS), rows(others)),
            dynamic_dims={"x": 0, "y": {0: "requests"}},
            limits={"tokens": 16, "requests": 8},
            config=CompilationConfig.model_validate(config),
        )


def asserting_even(x: Tensor) -> Tensor:
    assert x.shape[0] % 2 == 0
    return x * 2


def checking_even(x: Tensor) -> Tensor:
    torch._check(x.shape[0] % 2 == 0)
    return x * 2


@pytest.mark.parametrize("function", [asserting_even, checking_even])
@pytest.mark.parametrize("kind", KINDS)
def test_assertion_of_the_model_about_a_size_is_not_lost(
    function: Callable[[Tensor], Tensor],
    kind: DynamicShapesType,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if function is asserting_even and kind is DynamicShapesType.UNBACKED:
        line = function.__code__.co_firstlineno + 1
        with pytest.raises(TraceError, match=rf'test_compiled_sizes\.py", line {line}'):
            compile_shapes(function, kind)
        return
    with pytest.raises(CompileError, match="tokens=1"):
        compile_shapes(function, kind, "fail")
    with caplog.at_level(logging.WARNING, "ir_passes.compiler"):
        compiled = compile_shapes(function, kind, "warn")
    assert "does not hold for tokens=1" in caplog.text
    assert torch.equal(compiled(rows(4)), rows(4) * 2)
    if kind is DynamicShapesType.UNBACKED:
        with pytest.raises(RuntimeError, match=r"(?i)assert"):
            compiled(rows(5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_checked_first", [True, False])
def test_guards_of_one_program_are_not_those_of_an_equal_one(
    kind: DynamicShapesType, is_checked_first: bool
) -> None:
    def plain(x: Tensor) -> Tensor:
        return x * 2

    for function in (checking_even, plain) if is_checked_first else (plain, checking_even):
        compiled = compile_shapes(function, kind, "warn")
        broken = {each.sizes["tokens"] for each in compiled.report().broken}
        assert (3 in broken) is (function is checking_even)
        assert torch.equal(compiled(rows(4)), rows(4) * 2)


def _add_implementations_for_few_rows(kernels: Kernels) -> None:
    def few(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> bool:
        return x.shape[0] <= 8

    @kernels.scale.register_impl("choosy", supports_args=few)
    def choosy(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x * factor

    @kernels.scale.register_impl("branching_on_rows")
    def branching(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x * factor if x.shape[0] <= 8 else x * (2 * factor)


def _lower_scale(kernels: Kernels, kind: DynamicShapesType) -> tuple[int, ...]:
    """Compile `scale` for 1 to 16 rows; the sizes that some assumption excludes."""

    def model(x: Tensor) -> Tensor:
        return kernels.scale(x)

    trace = trace_call(
        model,
        (rows(TOKENS),),
        dynamic_dims={"x": 0},
        shapes=kind,
        dialect=kernels.dialect,
    )
    compiler = Compiler(trace.whole, Recipe(find_backend("eager"), Pipeline(), kernels.dialect))
    with shapes_mode(kind):
        program = compiler.compile(SizeRange(1, 16))
    guards = (*compiler.guards([program]), *bounds_of(trace.whole.mode, program.symbols()))
    return token_sizes(broken_guards(guards, trace.symbols, {"tokens": 16}))


@pytest.mark.parametrize("kind", KINDS)
def test_predicate_that_asks_for_the_batch_is_an_error_that_names_it(
    kernels: Kernels, kind: DynamicShapesType
) -> None:
    _add_implementations_for_few_rows(kernels)
    kernels.prefer(scale=("choosy",))
    with pytest.raises(LoweringError, match="`choosy`") as caught:
        _lower_scale(kernels, kind)
    assert "test_compiled_sizes.py" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_implementation_that_branches_on_the_batch_is_never_frozen(
    kernels: Kernels, kind: DynamicShapesType
) -> None:
    _add_implementations_for_few_rows(kernels)
    kernels.prefer(scale=("branching_on_rows",))
    if kind is DynamicShapesType.UNBACKED:
        with pytest.raises(
            LoweringError, match=r"(?s)`branching_on_rows` .* register it with `opaque"
        ):
            _lower_scale(kernels, kind)
        return
    assert set(range(9, 17)) <= set(_lower_scale(kernels, kind))


@pytest.mark.parametrize("splits_first", [True, False])
def test_size_that_only_a_later_piece_reads_is_known_to_those_before(
    kernels: Kernels, splits_first: bool
) -> None:
    """No input is the number itself, so the program has to measure one before its first step."""

    def model(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        y = x if splits_first else kernels.scale(x)
        kernels.store(y, cache)
        z = y + 1
        kernels.store(z, cache)
        return z + z.shape[0], z.new_full((z.shape[0] * 2,), 1.0)

    shapes = (("T", 8), (8,))
    _, run = compile_whole(trace(model, *shapes, dialect=kernels.dialect), kernels.dialect)
    for num_tokens in (5, 1, 2):
        given, kept = (random_tensors(*shapes, tokens=num_tokens) for _ in range(2))
        torch.testing.assert_close(tuple(run(*given)), model(*kept), rtol=0, atol=0)
        torch.testing.assert_close(given[1], kept[1], rtol=0, atol=0)
