"""A model of parameters, a paged cache and a residual stream is traced in every shapes mode."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
from ir_core import DonationError
from ir_passes.base import PassContext
from ir_passes.config import DynamicShapesType
from ir_passes.default_pipeline import PASSES
from ir_passes.errors import TraceError
from ir_passes.pipeline import Pipeline
from ir_passes.printer import print_graph
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.model_trace import trace_model
from ir_passes.tracing.whole_graph import Route, WholeGraph

from .graphs import calls, check_golden, node_calling

_HEADS, _SIZE, _HIDDEN = 2, 4, 8
DIMS = {"ids": 0, "step.slots": 0}


class Step(NamedTuple):
    """What a step tells attention."""

    table: Tensor
    lengths: Tensor
    starts: Tensor
    slots: Tensor


class Layer(nn.Module):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) / 4)

        self.norm = weight(_HIDDEN)
        self.qkv = weight(3 * _HIDDEN, _HIDDEN)
        self.out = weight(_HIDDEN, _HIDDEN)
        self.register_buffer("cache", torch.zeros(4, 2, _HEADS, 4, _SIZE))

    def forward(self, x: Tensor, residual: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = ir.ops.fused_add_rms_norm.maybe_inplace(x, residual, self.norm, 1e-5)
        heads = ir.ops.linear(x, self.qkv).view(-1, 3 * _HEADS, _SIZE)
        q, k, v = heads.split([_HEADS] * 3, dim=1)
        output = torch.empty(x.shape[0], _HEADS, _SIZE)
        ir.ops.paged_attention(
            q, k, v, output, self.cache, step.table, step.lengths, step.starts, step.slots, 0.5
        )
        return ir.ops.linear(output.view(-1, _HIDDEN), self.out), residual


class Model(nn.Module):
    def __init__(self, num_layers: int = 2) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(16, _HIDDEN, generator=generator))
        self.layers = nn.ModuleList(Layer(generator) for _ in range(num_layers))
        self.norm = nn.Parameter(torch.ones(_HIDDEN))

    def forward(self, ids: Tensor, step: Step) -> Tensor:
        x = nn.functional.embedding(ids, self.embedding)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return ir.ops.rms_norm(x + residual, self.norm, 1e-6)


def arguments(tokens: int) -> tuple[Tensor, Step]:
    ids = torch.arange(tokens) % 16
    counts = torch.tensor([0, tokens], dtype=torch.int32)
    table = torch.arange(4, dtype=torch.int32)[None]
    return ids, Step(table, counts[1:], counts, torch.arange(tokens))


def _run(whole: WholeGraph, model: Model, ids: Tensor, step: Step) -> Tensor:
    names: dict[str, Any] = {"ids": ids, **{f"step.{k}": v for k, v in step._asdict().items()}}
    names |= {f"self.{name}": each for name, each in model.state_dict().items()}
    sized = (names.get(each.path, ids.shape[0]) for each in whole.inputs)
    with torch.no_grad():
        return whole.bind(whole.module)(*sized)[0]


@pytest.mark.parametrize("shapes", DynamicShapesType)
def test_one_trace_serves_every_token_count(shapes: DynamicShapesType) -> None:
    model = Model()
    whole = trace_model(model, arguments(6), dynamic_dims=DIMS, shapes=shapes)
    assert (whole.route, whole.num_donations) == (Route.MAKE_FX, 2)
    run_pipeline(Pipeline.of(*PASSES), whole.module, PassContext(), RunOptions(verify_each=True))
    for tokens in (1, 2, 6, 13):
        ids, step = arguments(tokens)
        got = _run(whole, model, ids, step)
        with torch.no_grad():
            torch.testing.assert_close(got, model(ids, step))


def test_text_of_a_model_before_and_after_the_passes() -> None:
    whole = trace_model(Model(1), arguments(6), dynamic_dims=DIMS)
    check_golden("model_before", whole.module)
    report = run_pipeline(Pipeline.of(*PASSES), whole.module, PassContext())
    check_golden("model_after", whole.module)
    assert report.of("fuse_add_rms_norm").result.changed == 1


def test_text_is_the_same_in_backed_modes() -> None:
    shapes = (DynamicShapesType.BACKED, DynamicShapesType.BACKED_SIZE_OBLIVIOUS)
    for kind in shapes:
        whole = trace_model(Model(1), arguments(6), dynamic_dims=DIMS, shapes=kind)
        run_pipeline(Pipeline.of(*PASSES), whole.module, PassContext())
        check_golden("model_after_backed", whole.module)


def test_unbacked_trace_assumes_nothing_but_one_count() -> None:
    whole = trace_model(Model(1), arguments(6), dynamic_dims=DIMS)
    assert [each.expression for each in whole.guards] == ["Eq(u1, u0)"]


def test_backed_trace_says_what_it_assumed_and_where() -> None:
    def model(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 4 else x

    args = (torch.randn(6, 8),)
    shapes = DynamicShapesType.BACKED
    whole = trace_model(model, args, dynamic_dims={"x": 0}, shapes=shapes)
    (guard,) = whole.guards
    assert "4" in guard.expression
    assert "test_model_trace.py" in guard.location


def test_unbacked_trace_refuses_a_branch_on_the_count() -> None:
    def model(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 4 else x

    with pytest.raises(Exception, match=r"(?s)data-dependent.*test_model_trace.py"):
        trace_model(model, (torch.randn(6, 8),), dynamic_dims={"x": 0})


def test_trace_runs_nothing_and_marks_no_tensor_of_the_caller() -> None:
    model = Model(1)
    ids, step = arguments(6)
    trace_model(model, (ids, step), dynamic_dims=DIMS)
    assert not any(each.any() for name, each in model.state_dict().items() if "cache" in name)
    assert not hasattr(ids, "_dynamo_unbacked_indices")


def test_inputs_know_where_they_come_from() -> None:
    whole = trace_model(Model(1), arguments(6), dynamic_dims=DIMS)
    paths = {each.path: each.is_state for each in whole.inputs}
    assert paths["self.layers.0.norm"] is True
    assert paths["self.layers.0.cache"] is True
    assert paths["step.slots"] is False
    assert paths["ids"] is False


def test_weight_that_requires_grad_is_an_argument_like_any_other() -> None:
    model = Model(1)
    assert model.norm.requires_grad
    assert trace_model(model, arguments(6), dynamic_dims=DIMS).num_donations == 1


def test_donated_parameter_is_named_by_its_path() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state = nn.Buffer(torch.zeros(6, 8))

        def forward(self, x: Tensor) -> Tensor:
            return ir.ops.fused_add_rms_norm.maybe_inplace(x, self.state, None, 1e-5)[0]

    with pytest.raises(DonationError, match=r"the memory of `self\.state`, which belongs"):
        trace_model(Wrong(), (torch.randn(6, 8),))


def test_function_without_tensors_is_an_error() -> None:
    with pytest.raises(TraceError, match="nothing to compile"):
        trace_model(lambda number: number + 1, (3,))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.ops.ir.rms_norm(x, None, 1e-5),
        lambda x: ir.ops.rms_norm(x, weight=None, epsilon=1e-5, variance_size=None),
    ],
)
def test_omitted_and_explicit_defaults_are_one_call(model: Callable[..., Any]) -> None:
    whole = trace_model(model, (torch.randn(6, 8),))
    assert calls(whole.module) == ["rms_norm"]
    assert node_calling(whole.module, "rms_norm").args[1:] == (None, 1e-5)


@pytest.mark.parametrize("shapes", DynamicShapesType)
def test_a_later_trace_takes_no_dim_for_dynamic_because_its_size_is_another_one(
    shapes: DynamicShapesType,
) -> None:
    def model(x: Tensor) -> Tensor:
        return x * 2

    for tokens in (6, 3, 1):
        whole = trace_model(model, (torch.randn(tokens, 8),), shapes=shapes)
        assert f"x: f32[{tokens}, 8]" in print_graph(whole.module.graph)
