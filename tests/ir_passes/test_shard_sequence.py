"""Norms between collectives run on shards, with the numbers of the whole, and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

import ir_core as ir
from ir_core.groups import Group, scoped_groups
from ir_passes.base import PassContext, SizeRange
from ir_passes.config import DynamicShapesType
from ir_passes.dialect import Dialect
from ir_passes.location import INPUT_PATH
from ir_passes.metadata import fake_of
from ir_passes.pipeline import Pipeline
from ir_passes.printer import print_graph
from ir_passes.report import Effect, PassReport
from ir_passes.runner import run_pipeline
from ir_passes.tracing.model_trace import trace_model
from ir_passes.transforms.fuse_add_rms_norm import FuseAddRmsNorm
from ir_passes.transforms.shard_sequence import ShardSequence

HIDDEN = 8


class Block(nn.Module):
    """Two row-parallel products with their norms, as in a decoder's layer."""

    first: Tensor
    second: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        for name in ("first", "second"):
            weight = torch.randn(HIDDEN, HIDDEN, generator=random) / HIDDEN
            self.register_parameter(name, nn.Parameter(weight, requires_grad=False))
        scale = torch.rand(HIDDEN, generator=random)
        self.scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        x = ir.ops.all_reduce(x @ self.first)
        residual = x + residual
        x = ir.ops.rms_norm(residual, self.scale, 1e-5)
        x = ir.ops.all_reduce(torch.relu(x) @ self.second)
        return ir.ops.fused_add_rms_norm.maybe_inplace(x, residual, self.scale, 1e-5)


class Model(nn.Module):
    def __init__(self, num_layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(seed) for seed in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        residual = ir.ops.all_reduce(x)
        x = ir.ops.rms_norm(residual, None, 1e-5)
        for layer in self.layers:
            x, residual = layer(x, residual)
        return x


def trace(
    function: Callable[..., Any], kind: DynamicShapesType = DynamicShapesType.UNBACKED
) -> GraphModule:
    example = (torch.zeros(6, HIDDEN),)
    return trace_model(function, example, dynamic_dims={"x": 0}, shapes=kind).module


def shard(module: GraphModule, size: int, *before: Any, **options: Any) -> PassReport:
    context = PassContext(Dialect(), options.pop("sizes", SizeRange()), {"tp": size})
    report = run_pipeline(Pipeline.of(*before, ShardSequence(**options)), module, context)
    return report.passes[-1]


class Ranks:
    """Runs one graph on several ranks, node by node, with collectives between them."""

    def __init__(self, module: GraphModule, size: int) -> None:
        self._module = module
        self._size = size

    def run(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor]) -> list[Any]:
        """Results by rank, of the one argument of each and what all have."""
        values: list[dict[Node, Any]] = [{} for _ in range(self._size)]
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._place(node, inputs, state, values)
                continue
            arguments = [map_arg((node.args, node.kwargs), known.__getitem__) for known in values]
            if node.op == "output":
                return [each[0][0] for each in arguments]  # type: ignore[index]
            results = self._call(node, arguments)
            for known, result in zip(values, results, strict=True):
                known[node] = result
        raise AssertionError("no output")

    def _place(
        self,
        node: Node,
        inputs: Sequence[Tensor],
        state: Mapping[str, Tensor],
        values: Sequence[dict[Node, Any]],
    ) -> None:
        path = str(node.meta[INPUT_PATH])
        if not isinstance(fake_of(node), Tensor):
            shared: Any = [each.shape[0] for each in inputs]
        elif path == "x":
            shared = inputs
        else:
            shared = [state[path.removeprefix("self.")]] * self._size
        for known, value in zip(values, shared, strict=True):
            known[node] = value

    def _call(self, node: Node, arguments: Sequence[Any]) -> Sequence[Any]:
        name = getattr(node.target, "_opname", "")
        if name not in ("all_reduce", "reduce_scatter", "all_gather"):
            return [node.target(*args, **kwargs) for args, kwargs in arguments]  # type: ignore[operator]
        tensors = [args[0] for args, _ in arguments]
        if name == "all_gather":
            return [torch.cat(tensors)[: args[1]] for args, _ in arguments]
        total = torch.stack(tensors).sum(0)
        if name == "all_reduce":
            return [total.clone() for _ in arguments]
        rows = -(-len(total) // self._size)
        # Zero by the op's meaning; what it holds must not matter.
        padded = torch.full((rows * self._size, *total.shape[1:]), torch.nan)
        padded[: len(total)] = total
        return [each.clone() for each in padded.split(rows)]


def check(model: nn.Module, module: GraphModule, size: int, num_tokens: int) -> None:
    """Compare with the unchanged graph on the same ranks, every row different."""
    random = torch.Generator().manual_seed(num_tokens)
    inputs = [torch.randn(num_tokens, HIDDEN, generator=random) for _ in range(size)]
    state = model.state_dict()
    with scoped_groups(Group("tp", 0, size)):
        plain = trace(model)
    wanted = Ranks(plain, size).run(inputs, state)
    found = Ranks(module, size).run(inputs, state)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def collectives(module: GraphModule) -> dict[str, int]:
    names = [getattr(node.target, "_opname", "") for node in module.graph.nodes]
    return {name: names.count(name) for name in ("all_reduce", "reduce_scatter", "all_gather")}


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", DynamicShapesType)
def test_logits_of_every_token_count(kind: DynamicShapesType, size: int, fuses: bool) -> None:
    model = Model()
    with scoped_groups(Group("tp", 0, size)):
        module = trace(model, kind)
        report = shard(module, size, *((FuseAddRmsNorm(),) if fuses else ()))
    assert report.result.changed == 5
    if kind is DynamicShapesType.UNBACKED:
        assert report.guards == ()
    assert collectives(module) == {"all_reduce": 0, "reduce_scatter": 5, "all_gather": 5}
    for num_tokens in (*range(1, 10), 16, 17):
        check(model, module, size, num_tokens)


def test_residual_stays_sharded_from_layer_to_layer() -> None:
    with scoped_groups(Group("tp", 0, 4)):
        module = trace(Model())
        shard(module, 4)
    text = print_graph(module.graph)
    sums = [node for node in module.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    assert len(sums) == 2
    for node in sums:
        assert "//4" in str(fake_of(node).shape[0]).replace(" ", ""), text


def test_donations_are_kept() -> None:
    with scoped_groups(Group("tp", 0, 2)):
        module = trace(Model(1))
        shard(module, 2)
    (line,) = [each for each in print_graph(module.graph).splitlines() if "fused_add" in each][:1]
    assert line.endswith("# donates x, x_residual")


KINDS = ("fp8_static", "fp8_per_token", "int8_per_token")


class QuantizedModel(nn.Module):
    """Norms that are quantised for the products that read them, as in a layer of bytes.

    `peeks`: the last norm is read before it is quantised too.
    """

    static: Tensor

    def __init__(self, kind: str, *, peeks: bool = False) -> None:
        super().__init__()
        self._kind, self._peeks = kind, peeks
        random = torch.Generator().manual_seed(3)
        weight = torch.randn(HIDDEN, HIDDEN, generator=random)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("static", torch.full((1,), 0.02))

    def forward(self, x: Tensor) -> Tensor:
        residual = ir.ops.all_reduce(x)
        x = self._product(ir.ops.rms_norm(residual, None, 1e-5))
        x, residual = ir.ops.fused_add_rms_norm(ir.ops.all_reduce(x), residual, None, 1e-5)
        return self._product(x) + x if self._peeks else self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        quantize = ir.registry()[f"quantize_{self._kind}"]
        if self._kind == "fp8_static":
            return quantize(x, self.static).float() @ self.weight
        values, scale = quantize(x)
        return (values.float() @ self.weight) * scale


def gathered_dtypes(module: GraphModule) -> list[torch.dtype]:
    """What is gathered, in the graph's order."""
    op = ir.ops.all_gather.torch_op
    return [fake_of(node).dtype for node in module.graph.nodes if node.target is op]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_quantised_rows_are_gathered_as_bytes_with_their_scales(kind: str, size: int) -> None:
    model = QuantizedModel(kind)
    with scoped_groups(Group("tp", 0, size)):
        module = trace(model)
        assert shard(module, size).result.changed == 2
    values = torch.int8 if kind == "int8_per_token" else torch.float8_e4m3fn
    scales = [] if kind == "fp8_static" else [torch.float32]
    assert gathered_dtypes(module) == [values, *scales] * 2
    for num_tokens in (*range(1, 10), 16, 17):
        check(model, module, size, num_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_something_else_reads_are_gathered_before_they_are_quantised(kind: str) -> None:
    model = QuantizedModel(kind, peeks=True)
    with scoped_groups(Group("tp", 0, 2)):
        module = trace(model)
        assert shard(module, 2).result.changed == 2
    assert gathered_dtypes(module)[-1:] == [torch.float32]
    assert len(gathered_dtypes(module)) == (2 if kind == "fp8_static" else 3)
    for num_tokens in (1, 4, 7):
        check(model, module, 2, num_tokens)


def test_scale_from_all_rows_keeps_a_norm_from_being_quantised_on_its_shard() -> None:
    def function(x: Tensor) -> Tensor:
        normal = ir.ops.rms_norm(ir.ops.all_reduce(x), None, 1e-5)
        return ir.ops.quantize_fp8_static(normal, normal.amax().clamp_min(1e-3)).float()

    with scoped_groups(Group("tp", 0, 2)):
        module = trace(function)
        assert shard(module, 2).result.changed == 1
    assert gathered_dtypes(module) == [torch.float32]


def returned_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    total = ir.ops.all_reduce(x)
    return ir.ops.rms_norm(total, None, 1e-5), total


def sum_in_a_product(x: Tensor) -> Tensor:
    total = ir.ops.all_reduce(x)
    return ir.ops.rms_norm(total, None, 1e-5) + total.sum(dim=0)


def residual_of_the_caller(x: Tensor) -> Tensor:
    total = ir.ops.all_reduce(x * 2)
    return ir.ops.fused_add_rms_norm(total, x, None, 1e-5)[0]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (returned_sum, "the model returns it with all its rows"),
        (sum_in_a_product, "`aten.sum.dim_IntList` reads it with all its rows"),
        (residual_of_the_caller, "`ir.fused_add_rms_norm.default` reads it with all its rows"),
    ],
)
def test_sum_that_others_read_is_left_alone(function: Callable[[Tensor], Any], reason: str) -> None:
    with scoped_groups(Group("tp", 0, 2)):
        module = trace(function)
        before = print_graph(module.graph)
        report = shard(module, 2)
    assert report.result.changed == 0
    assert [each.reason for each in report.near_misses] == [reason]
    assert print_graph(module.graph) == before


def test_obstacle_spreads_to_what_would_mix_rows() -> None:
    """The second sum is added to the first, whose rows all ranks need: neither is sharded."""

    def function(x: Tensor) -> Tensor:
        first = ir.ops.all_reduce(x)
        second = ir.ops.all_reduce(x * 2)
        return ir.ops.rms_norm(first + second, None, 1e-5) + first.sum(dim=0)

    with scoped_groups(Group("tp", 0, 2)):
        module = trace(function)
        report = shard(module, 2)
    assert report.result.changed == 0
    assert len(report.near_misses) == 2


def test_sums_of_different_row_counts_are_gathered_to_their_own() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        few, many = ir.ops.all_reduce(x), ir.ops.all_reduce(torch.cat([x, x, x]))
        return ir.ops.rms_norm(few, None, 1e-5), ir.ops.rms_norm(many, None, 1e-5)

    with scoped_groups(Group("tp", 0, 2)):
        module = trace(function)
        assert shard(module, 2).result.changed == 2
        whole = trace(function)
    assert returned_shapes(module) == returned_shapes(whole)


def returned_shapes(module: GraphModule) -> list[str]:
    shapes: list[str] = []
    map_arg(module.graph.output_node().args, lambda node: shapes.append(str(fake_of(node).shape)))
    return shapes


def test_sum_beside_a_value_of_more_dims_is_not_taken_for_the_same_in_all_rows() -> None:
    def function(x: Tensor) -> Tensor:
        rows, blocks = ir.ops.all_reduce(x), ir.ops.all_reduce(x[:, None] * 2)
        return blocks + rows

    with scoped_groups(Group("tp", 0, 2)):
        module = trace(function)
        report = shard(module, 2)
    assert report.result.changed == 0
    assert len(report.near_misses) == 2


def test_other_axis_is_left_alone() -> None:
    with scoped_groups(Group("ep", 0, 2)):
        module = trace(lambda x: ir.ops.rms_norm(ir.ops.all_reduce(x, "ep"), None, 1e-5))
        assert shard(module, 2).result.matches == ()


@pytest.mark.parametrize(
    ("size", "sizes", "reason"),
    [
        (1, SizeRange(), "axis `tp` has one rank"),
        (2, SizeRange(1, 7), "fewer than 8 tokens"),
    ],
)
def test_reason_not_to_run(size: int, sizes: SizeRange, reason: str) -> None:
    module = trace(lambda x: ir.ops.rms_norm(x, None, 1e-5))
    report = shard(module, size, sizes=sizes, min_tokens=8)
    assert (report.effect, report.reason) == (Effect.DOES_NOT_APPLY, reason)


def test_threshold_ends_a_range() -> None:
    assert ShardSequence(min_tokens=8).endpoints() == (7,)
    assert ShardSequence().endpoints() == ()
