"""The rotation of heads becomes part of the attention that reads them, and nothing else does."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
import ir_passes
from ir_passes.arguments import bound_arguments
from ir_passes.base import PassContext
from ir_passes.config import CompilationConfig, DynamicShapesType
from ir_passes.default_pipeline import PASSES
from ir_passes.dialect import Dialect
from ir_passes.pipeline import Pipeline
from ir_passes.report import Effect, PassReport
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.graph_input import GraphInput
from ir_passes.tracing.model_trace import trace_model
from ir_passes.tracing.whole_graph import WholeGraph, trace_function
from ir_passes.transforms.fuse_rotary_attention import FuseRotaryAttention

from .graphs import FakeInputs, apply, calls, check_golden, node_calling
from .test_fuse_qk_norm_rope import Qwen3Attention
from .test_model_trace import DIMS, Step, arguments

ATTEND, ROTATE, NORM_ROTATE = (
    ir.ops.paged_attention,
    ir.ops.rotary_embedding,
    ir.ops.qk_norm_rope,
)
FUSED = ir.ops.rotary_paged_attention
OPS = (ATTEND, ROTATE, NORM_ROTATE, FUSED)
LIBRARY = "one_call"
TOKENS, SIZE = 5, 8
VALUES = FUSED.generate_inputs(
    num_tokens=TOKENS, dtype=torch.float32, heads=(4, 2), head_size=SIZE, context=12, normed=True
)
GIVEN = FUSED.schema.names
TENSORS = [name for name, value in zip(GIVEN, VALUES, strict=True) if isinstance(value, Tensor)]


class Heads(dict[str, Any]):
    """The tensors of one call, and calls of the ops on them."""

    def rotate(self, **changes: Any) -> tuple[Tensor, Tensor]:
        values = {"x_query": self["x_query"], "x_key": self["x_key"], **changes}
        return ROTATE(**values, **self._rotation)

    def norm_rotate(self) -> tuple[Tensor, Tensor]:
        names = ("x_query", "x_key", "query_weight", "key_weight")
        return NORM_ROTATE(**{name: self[name] for name in names}, epsilon=0.5, **self._rotation)

    def attend(self, query: Tensor, key: Tensor, **changes: Any) -> None:
        names = ATTEND.schema.names[2:9]
        given = {name: self[name] for name in names} | {"scale": 0.5} | changes
        ATTEND(query, key, **given)

    @property
    def _rotation(self) -> dict[str, Any]:
        return {
            "positions": self["positions"],
            "cos_sin_cache": self["cos_sin_cache"],
            "head_size": SIZE,
        }


Model = Callable[[Heads], Any]


@contextmanager
def one_call_library() -> Generator[None]:
    """Another name for native of the ops that are fused and of what they become, first in line."""
    with pytest.MonkeyPatch.context() as patch:
        for op in OPS:
            added = replace(op.native, provider=LIBRARY)
            patch.setattr(op, "_implementations", {**op.implementations, LIBRARY: added})
        with ir.priority({op.name: [LIBRARY] for op in OPS}):
            yield
    ir.registry().forget_choices()


@pytest.fixture(autouse=True)
def library() -> Generator[None]:
    ir.load_plugins()
    with one_call_library():
        yield


def _trace(model: Model) -> WholeGraph:
    fakes = FakeInputs()
    examples = dict(zip(GIVEN, VALUES, strict=True))
    batch = {"x_query", "x_key", "x_value", "output", "slot_mapping", "positions"}
    tensors = [
        fakes.tensor(
            ("T" if name in batch else examples[name].shape[0], *examples[name].shape[1:]),
            examples[name].dtype,
        )
        for name in TENSORS
    ]

    def function(*values: Tensor) -> tuple[Any, ...]:
        result = model(Heads(zip(TENSORS, values, strict=True)))
        return () if result is None else tuple(result)

    return trace_function(function, tensors, [*map(GraphInput, TENSORS)])


def _values() -> list[Tensor]:
    examples = dict(zip(GIVEN, VALUES, strict=True))
    return [examples[name].clone() for name in TENSORS]


def _run(model: Model) -> tuple[WholeGraph, PassReport]:
    """Apply the pass, and compare results, outputs and caches with those from before."""
    whole = _trace(model)
    before, after = _values(), _values()
    wanted = whole.module(*before)
    report = apply(whole, FuseRotaryAttention())
    got = whole.module(*after)
    for mine, theirs in zip([*got, *after], [*wanted, *before], strict=True):
        assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7))
    return whole, report.passes[0]


FITS: dict[str, Model] = {
    "rotation": lambda h: h.attend(*h.rotate()),
    "norm and rotation": lambda h: h.attend(*h.norm_rotate()),
    "window": lambda h: h.attend(*h.rotate(), sliding_window=3),
    "pairs": lambda h: h.attend(*h.rotate(is_neox=False)),
    "donated": lambda h: h.attend(
        *ROTATE.maybe_inplace(
            h["x_query"] + 1, h["x_key"] * 2, h["positions"], h["cos_sin_cache"], SIZE
        )
    ),
    "heads of a merged row": lambda h: h.attend(
        *h.rotate(x_query=torch.cat([h["x_query"], h["x_key"]], dim=1)[:, :4])
    ),
}


@pytest.mark.parametrize("model", FITS.values(), ids=FITS)
def test_rotation_becomes_part_of_attention_bit_for_bit(model: Model) -> None:
    whole, report = _run(model)
    assert report.result.changed == 1
    found = calls(whole.module)
    assert "rotary_paged_attention" in found
    assert {"rotary_embedding", "qk_norm_rope", "paged_attention"}.isdisjoint(found)


def test_each_call_keeps_its_own_constants() -> None:
    def model(heads: Heads) -> None:
        heads.attend(*heads.rotate(is_neox=False), sliding_window=2, scale=0.25)
        heads.attend(*heads.norm_rotate())

    whole, report = _run(model)
    assert report.result.changed == 2
    nodes = [node for node in whole.module.graph.nodes if node.target is FUSED.torch_op]
    first, second = map(bound_arguments, nodes)
    names = ("scale", "sliding_window", "is_neox")
    assert [first[name] for name in names] == [0.25, 2, False]
    assert [second[name] for name in names] == [0.5, None, True]
    assert (first["query_weight"], first["key_weight"]) == (None, None)
    placeholders = whole.module.graph.find_nodes(op="placeholder")
    at = TENSORS.index("query_weight")
    weights = (second["query_weight"], second["key_weight"])
    assert (*weights, second["epsilon"]) == (*placeholders[at : at + 2], 0.5)


def _keys_returned(heads: Heads) -> tuple[Tensor]:
    query, key = heads.rotate()
    heads.attend(query, key)
    return (key,)


def _turned_twice(heads: Heads) -> None:
    query, key = heads.rotate()
    heads.attend(query, key)
    heads.attend(query, key, scale=0.1)


def _output_in_between(heads: Heads) -> None:
    turned = heads.rotate()
    heads.attend(heads["x_query"], heads["x_key"], output=heads["x_query"])
    heads.attend(*turned)


def _over_its_own_queries(heads: Heads) -> None:
    heads.attend(*heads.rotate(), output=heads["x_query"])


MISSES: dict[str, tuple[Model, str]] = {
    "keys are returned": (_keys_returned, "`getitem_1` is also used by `output`"),
    "read by two": (_turned_twice, "`getitem` is also used by `paged_attention`"),
    "not turned": (
        lambda h: h.attend(h["x_query"], h["x_key"]),
        "`x_query` is made by `an input`, not by `ir.rotary_embedding[0]`",
    ),
    "turned queries only": (
        lambda h: h.attend(h.rotate()[0], h["x_key"]),
        "`x_key` is made by `an input`, not by `ir.rotary_embedding[1]`",
    ),
    "swapped": (
        lambda h: h.attend(*h.rotate(x_query=h["x_key"], x_key=h["x_query"])[::-1]),
        "is output 1, not `ir.rotary_embedding[0]`",
    ),
    "scaled in between": (
        lambda h: h.attend(h.rotate()[0] * 2, h.rotate()[1]),
        "`x_query` is made by `aten.mul`",
    ),
    "flat heads": (
        lambda h: h.attend(
            *(
                each.view(-1, heads, SIZE)
                for each, heads in zip(
                    h.rotate(
                        x_query=h["x_query"].reshape(-1, 4 * SIZE),
                        x_key=h["x_key"].reshape(-1, 2 * SIZE),
                    ),
                    (4, 2),
                    strict=True,
                )
            )
        ),
        "`x_query` is made by `aten.view`",
    ),
    "queries written in between": (
        _output_in_between,
        "`paged_attention` writes an operand in between",
    ),
    "queries are the output": (_over_its_own_queries, "writes what it is made from"),
}


@pytest.mark.parametrize(("model", "reason"), MISSES.values(), ids=MISSES)
def test_near_miss_has_a_reason_and_changes_nothing(model: Model, reason: str) -> None:
    whole, report = _run(model)
    assert report.result.changed == 0
    assert reason in report.near_misses[-1].reason
    assert "rotary_paged_attention" not in calls(whole.module)


@pytest.mark.parametrize(
    ("priority", "reason"),
    [
        (
            {"rotary_paged_attention": ["native"]},
            "`one_call` `rotary_embedding`, `one_call` `paged_attention`, `native` "
            "`rotary_paged_attention`",
        ),
        ({"paged_attention": ["native"]}, "`native` `paged_attention`"),
        ({"rotary_embedding": ["native"]}, "`native` `rotary_embedding`"),
        (
            {op.name: ["native"] for op in OPS},
            "`native` `rotary_embedding`, `native` `paged_attention`",
        ),
    ],
    ids=["nobody does it at once", "other attention", "other rotation", "native does it all"],
)
def test_kernels_that_do_not_do_both_are_a_reason(
    priority: dict[str, list[str]], reason: str
) -> None:
    with ir.priority(priority):
        _, report = _run(FITS["rotation"])
    assert report.result.changed == 0
    assert reason in report.near_misses[0].reason


def test_attention_that_nobody_fuses_batch_invariantly_is_left_alone() -> None:
    whole = _trace(FITS["rotation"])
    ir.set_batch_invariant(True)
    try:
        report = apply(whole, FuseRotaryAttention()).passes[0]
    finally:
        ir.set_batch_invariant(None)
    assert report.result.changed == 0
    assert "`nobody's` `rotary_paged_attention`" in report.near_misses[0].reason


@pytest.mark.parametrize(
    ("splitting_ops", "is_fused"),
    [
        (("paged_attention",), False),
        (("paged_attention", "rotary_paged_attention"), True),
        (("ir::linear",), True),
        ((), True),
    ],
)
def test_graph_is_split_at_attention_before_and_after(
    splitting_ops: tuple[str, ...], is_fused: bool
) -> None:
    whole = _trace(FITS["rotation"])
    context = PassContext(Dialect(splitting_ops=splitting_ops))
    report = run_pipeline(Pipeline.of(FuseRotaryAttention()), whole.module, context).passes[0]
    if is_fused:
        assert report.result.changed == 1
        return
    assert report.effect is Effect.DOES_NOT_APPLY
    assert report.reason == (
        "`splitting_ops` names one of `paged_attention` and `rotary_paged_attention`, not both"
    )


class LlamaAttention(Qwen3Attention):
    """Attention without norms: both are slices of one product."""

    def forward(self, ids: Tensor, step: Step) -> Tensor:
        x = torch.nn.functional.embedding(ids, self.embedding)
        q, k, v = ir.ops.linear(x, self.qkv).split([8, 4, 4], dim=-1)
        q, k, v = (each.view(-1, each.shape[-1] // 4, 4) for each in (q, k, v))
        q, k = ROTATE(q, k, torch.arange(ids.shape[0]), self.cos_sin, 4)
        output = torch.empty(x.shape[0], 2, 4)
        ATTEND(q, k, v, output, self.cache, step.table, step.lengths, step.starts, step.slots, 0.5)
        return output.view(-1, 8)


MODELS = {"rope": LlamaAttention, "norm and rope": Qwen3Attention}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("shapes", DynamicShapesType)
def test_models_are_fused_in_every_shapes_mode(
    shapes: DynamicShapesType, model: type[torch.nn.Module]
) -> None:
    whole = trace_model(model(), arguments(6), dynamic_dims=DIMS, shapes=shapes)
    options = RunOptions(verify_each=True)
    report = run_pipeline(Pipeline.of(*PASSES), whole.module, PassContext(), options)
    assert report.of("fuse_rotary_attention").result.changed == 1
    given = bound_arguments(node_calling(whole.module, "rotary_paged_attention"))
    assert (given["query_weight"] is None) == (model is LlamaAttention)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("is_fused", [None, False])
def test_compiled_attention_computes_what_eager_mode_does(
    is_fused: bool | None, model: type[torch.nn.Module]
) -> None:
    if not FUSED.implementations["vllm_c"].supported:
        pytest.skip(FUSED.implementations["vllm_c"].unsupported_reason)
    config = CompilationConfig.model_validate(
        {"backend": "eager", "pass_config": {"fuse_rope_kvcache": is_fused}}
    )
    with ir.priority({op.name: ["vllm_c"] for op in OPS}), torch.no_grad():
        compiled = ir_passes.compile(
            model(), arguments(6), dynamic_dims=DIMS, limits={"tokens": 16}, config=config
        )
        for tokens in (1, 2, 6, 13):
            got, wanted = compiled(*arguments(tokens)), model()(*arguments(tokens))
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    report = compiled.report()
    assert ("rotary_paged_attention" in report.selected_impls) is (is_fused is None)
    assert ("paged_attention" in report.selected_impls) is (is_fused is False)


def test_text_before_and_after() -> None:
    def model(heads: Heads) -> None:
        heads.attend(*heads.rotate())
        heads.attend(*heads.norm_rotate(), sliding_window=3)

    whole, _ = _run(model)
    check_golden("fuse_rotary_attention_after", whole.module)
    check_golden("fuse_rotary_attention_before", _trace(model).module)
