"""Norms of query and key heads and their rotation become one op, bit for bit, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
import ir_passes
from ir_passes.arguments import bound_arguments
from ir_passes.base import PassContext
from ir_passes.config import CompilationConfig, DynamicShapesType
from ir_passes.default_pipeline import PASSES
from ir_passes.pipeline import Pipeline
from ir_passes.report import PassReport
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.graph_input import GraphInput
from ir_passes.tracing.model_trace import trace_model
from ir_passes.tracing.whole_graph import WholeGraph, trace_function
from ir_passes.transforms.fuse_qk_norm_rope import FuseQkNormRope

from .graphs import FakeInputs, apply, calls, check_golden, node_calling
from .test_model_trace import DIMS, Step, arguments

NORM, ROTATE = ir.ops.rms_norm, ir.ops.rotary_embedding
MAX_POSITION, SIZE = 16, 4
INPUTS: dict[str, tuple[int | str, ...]] = {
    "q": ("T", 2, SIZE),
    "k": ("T", 1, SIZE),
    "wq": (SIZE,),
    "wk": (SIZE,),
    "positions": ("T",),
    "table": (MAX_POSITION, SIZE),
}
NATIVE = {op: ["native"] for op in ("rms_norm", "rotary_embedding", "qk_norm_rope")}

Model = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Any]


def _dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    return {"positions": torch.int64, "table": torch.float32}.get(name, dtype)


def _trace(model: Model, dtype: torch.dtype = torch.float32) -> WholeGraph:
    fakes = FakeInputs()
    tensors = [fakes.tensor(shape, _dtype(name, dtype)) for name, shape in INPUTS.items()]
    return trace_function(lambda *args: tuple(model(*args)), tensors, [*map(GraphInput, INPUTS)])


def _inputs(dtype: torch.dtype, tokens: int = 5) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    sizes = [[tokens if each == "T" else int(each) for each in shape] for shape in INPUTS.values()]
    tensors = [torch.randn(size, generator=random) for size in sizes]
    tensors[4] = torch.randint(MAX_POSITION, (tokens,), generator=random)
    return [each.to(_dtype(name, dtype)) for name, each in zip(INPUTS, tensors, strict=True)]


def _run(model: Model, dtype: torch.dtype = torch.float32) -> tuple[WholeGraph, PassReport]:
    whole = _trace(model, dtype)
    with ir.priority(NATIVE):
        wanted = whole.module(*_inputs(dtype))
        report = apply(whole, FuseQkNormRope())
        got = whole.module(*_inputs(dtype))
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.equal(mine, theirs)
    return whole, report.passes[0]


def _attention(
    q: Tensor, k: Tensor, wq: Tensor, wk: Tensor, positions: Tensor, table: Tensor
) -> tuple[Tensor, Tensor]:
    return ROTATE(NORM(q, wq, 1e-6), NORM(k, wk, 1e-6), positions, table, SIZE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_fused_result_is_the_same_bit_for_bit(dtype: torch.dtype) -> None:
    whole, report = _run(_attention, dtype)
    assert report.result.changed == 1
    assert calls(whole.module) == ["qk_norm_rope"]


SPELLINGS: dict[str, Model] = {
    "keyword": lambda q, k, wq, wk, p, t: ROTATE(
        NORM(x=q, weight=wq, epsilon=1e-6),
        NORM(x=k, weight=wk, epsilon=1e-6, variance_size=None),
        cos_sin_cache=t,
        positions=p,
        head_size=SIZE,
    ),
    "overload": lambda q, k, wq, wk, p, t: torch.ops.ir.rotary_embedding.default(
        torch.ops.ir.rms_norm.default(q, wq, 1e-6), NORM(k, wk, 1e-6), p, t, SIZE, True
    ),
    "donated": lambda q, k, wq, wk, p, t: ROTATE.maybe_inplace(
        NORM(q, wq, 1e-6), NORM(k, wk, 1e-6), p, t, SIZE
    ),
    "pairs": lambda q, k, wq, wk, p, t: ROTATE(
        NORM(q, wq, 1e-6), NORM(k, wk, 1e-6), p, t, SIZE, False
    ),
    "part of the head": lambda q, k, wq, wk, p, t: ROTATE(
        NORM(q, wq, 1e-6), NORM(k, wk, 1e-6), p, t[:, :2], SIZE
    ),
    "another epsilon": lambda q, k, wq, wk, p, t: ROTATE(
        NORM(q, wq, 0.5), NORM(k, wk, 0.5), p, t, SIZE
    ),
    "one weight": lambda q, k, wq, wk, p, t: ROTATE(
        NORM(q, wq, 1e-6), NORM(k, wq, 1e-6), p, t, SIZE
    ),
    "only the keys": lambda q, k, wq, wk, p, t: _attention(q, k, wq, wk, p, t)[1:],
}


@pytest.mark.parametrize("model", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_and_every_scalar_matches(model: Model) -> None:
    whole, report = _run(model)
    assert report.result.changed == 1
    assert "rms_norm" not in calls(whole.module)


def test_each_layer_keeps_its_own_constants() -> None:
    constants = [(1e-6, True), (1e-5, False), (0.5, True)]

    def model(
        q: Tensor, k: Tensor, wq: Tensor, wk: Tensor, positions: Tensor, table: Tensor
    ) -> tuple[Tensor, Tensor]:
        for epsilon, is_neox in constants:
            heads = NORM(q, wq, epsilon), NORM(k, wk, epsilon)
            q, k = ROTATE(*heads, positions, table, SIZE, is_neox)
        return q, k

    whole, report = _run(model)
    assert report.result.changed == 3
    op = ir.ops.qk_norm_rope.torch_op
    given = [bound_arguments(node) for node in whole.module.graph.nodes if node.target is op]
    assert [(each["epsilon"], each["is_neox"]) for each in given] == constants


def _normed_elsewhere(q: Tensor, k: Tensor, wq: Tensor, wk: Tensor, *rest: Tensor) -> Any:
    normal = NORM(q, wq, 1e-6)
    return *ROTATE(normal, NORM(k, wk, 1e-6), *rest, SIZE), normal


MISSES: dict[str, tuple[Model, str]] = {
    "two epsilons": (
        lambda q, k, wq, wk, p, t: ROTATE(NORM(q, wq, 1e-6), NORM(k, wk, 1e-5), p, t, SIZE),
        "`epsilon` is another value than `epsilon` elsewhere",
    ),
    "used elsewhere": (_normed_elsewhere, "`rms_norm` is also used by `output`"),
    "no norm": (
        lambda q, k, wq, wk, p, t: ROTATE(q, k, p, t, SIZE),
        "`x_query` is made by `an input`, not by `ir.rms_norm`",
    ),
    "queries only": (
        lambda q, k, wq, wk, p, t: ROTATE(NORM(q, wq, 1e-6), k, p, t, SIZE),
        "`x_key` is made by `an input`, not by `ir.rms_norm`",
    ),
    "scaled": (
        lambda q, k, wq, wk, p, t: ROTATE(NORM(q, wq, 1e-6) * 2, NORM(k, wk, 1e-6), p, t, SIZE),
        "`x_query` is made by `aten.mul`",
    ),
    "no weight": (
        lambda q, k, wq, wk, p, t: ROTATE(NORM(q, wq, 1e-6), NORM(k, None, 1e-6), p, t, SIZE),
        "the norm of `x_key` has no weight",
    ),
    "part of the row": (
        lambda q, k, wq, wk, p, t: ROTATE(NORM(q, wq, 1e-6, 2), NORM(k, wk, 1e-6), p, t, SIZE),
        "`variance_size` is 2, not None",
    ),
    "all heads together": (
        lambda q, k, wq, wk, p, t: ROTATE(
            NORM(q.view(-1, 8), wq.repeat(2), 1e-6), NORM(k, wk, 1e-6), p, t, SIZE
        ),
        "is not normalised by heads of 4",
    ),
    "other head size": (
        lambda q, k, wq, wk, p, t: ROTATE(NORM(q, wq, 1e-6), NORM(k, wk, 1e-6), p, t, 2 * SIZE),
        "is not normalised by heads of 8",
    ),
}


@pytest.mark.parametrize(("model", "reason"), MISSES.values(), ids=MISSES.keys())
def test_near_miss_has_a_reason(model: Model, reason: str) -> None:
    _, report = _run(model)
    assert report.result.changed == 0
    assert reason in report.near_misses[0].reason


class Qwen3Attention(nn.Module):
    """Attention with a norm on each query and key head; both are slices of one product."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) / 4)

        self.embedding, self.qkv = weight(16, 8), weight(4 * SIZE, 8)
        self.q_norm, self.k_norm = weight(SIZE), weight(SIZE)
        self.register_buffer("cos_sin", torch.randn(MAX_POSITION, SIZE, generator=generator))
        self.register_buffer("cache", torch.zeros(4, 2, 1, 4, SIZE))

    def forward(self, ids: Tensor, step: Step) -> Tensor:
        x = nn.functional.embedding(ids, self.embedding)
        q, k, v = ir.ops.linear(x, self.qkv).split([2 * SIZE, SIZE, SIZE], dim=-1)
        q, k, v = (each.view(-1, each.shape[-1] // SIZE, SIZE) for each in (q, k, v))
        q, k = NORM(q, self.q_norm, 1e-6), NORM(k, self.k_norm, 1e-6)
        q, k = ROTATE(q, k, torch.arange(ids.shape[0]), self.cos_sin, SIZE)
        output = torch.empty(x.shape[0], 2, SIZE)
        ir.ops.paged_attention(
            q, k, v, output, self.cache, step.table, step.lengths, step.starts, step.slots, 0.5
        )
        return output.view(-1, 2 * SIZE)


@pytest.mark.parametrize("shapes", DynamicShapesType)
def test_attention_is_fused_in_every_shapes_mode(shapes: DynamicShapesType) -> None:
    whole = trace_model(Qwen3Attention(), arguments(6), dynamic_dims=DIMS, shapes=shapes)
    options = RunOptions(verify_each=True)
    # Attention would take the turned heads in, too.
    pipeline = Pipeline.of(*PASSES).disable(["fuse_rotary_attention"], "not here")
    report = run_pipeline(pipeline, whole.module, PassContext(), options)
    assert report.of("fuse_qk_norm_rope").result.changed == 1
    given = bound_arguments(node_calling(whole.module, "qk_norm_rope"))
    assert (given["epsilon"], given["head_size"], given["is_neox"]) == (1e-6, SIZE, True)
    assert {"rms_norm", "rotary_embedding"}.isdisjoint(calls(whole.module))


@pytest.mark.parametrize("is_fused", [None, False])
@pytest.mark.parametrize("shapes", DynamicShapesType)
def test_compiled_attention_computes_the_same_without_clones(
    shapes: DynamicShapesType, is_fused: bool | None
) -> None:
    config = CompilationConfig.model_validate(
        {
            "backend": "eager",
            "dynamic_shapes_config": {"type": shapes, "guards": "rebuild"},
            "pass_config": {"enable_qk_norm_rope_fusion": is_fused, "fuse_rope_kvcache": False},
        }
    )
    kernels = {op: ["vllm_c"] for op in NATIVE}
    with ir.priority(kernels), torch.no_grad():
        compiled = ir_passes.compile(
            Qwen3Attention(),
            arguments(6),
            dynamic_dims=DIMS,
            limits={"tokens": MAX_POSITION},
            config=config,
        )
        for tokens in (1, 2, 6, 13):
            got, wanted = compiled(*arguments(tokens)), Qwen3Attention()(*arguments(tokens))
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    report = compiled.report()
    assert ("qk_norm_rope" in report.selected_impls) is (is_fused is None)
    assert not [row for each in report.programs for piece in each.pieces for row in piece.clones]


def test_text_before_and_after() -> None:
    def model(
        q: Tensor, k: Tensor, wq: Tensor, wk: Tensor, positions: Tensor, table: Tensor
    ) -> tuple[Tensor, ...]:
        q, k = _attention(q.view(-1, 2, SIZE), k, wq, wk, positions, table)
        scores = (q * k).sum(-1)
        q, k = ROTATE(NORM(q, wk, 1e-5), NORM(k, None, 1e-5), positions, table, SIZE, False)
        return scores, q, k

    whole, _ = _run(model)
    check_golden("fuse_qk_norm_rope_after", whole.module)
    check_golden("fuse_qk_norm_rope_before", _trace(model).module)
