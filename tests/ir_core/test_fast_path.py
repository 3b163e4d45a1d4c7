"""Every form of a call is the same call: in eager mode, in a graph and through the dispatcher."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from ir_core import ArgumentError, GradientError, IrOp, Registry

X, WEIGHT = torch.arange(8.0).reshape(2, 4), torch.tensor([1.0, 2.0, 3.0, 4.0])

FORMS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "positional": lambda op, x, weight: op(x, weight, 2.0),
    "explicit-default": lambda op, x, weight: op(x, weight, 2.0, None),
    "keyword": lambda op, x, weight: op(factor=2.0, weight=weight, x=x),
    "mixed": lambda op, x, weight: op(x, factor=2.0, weight=weight),
    "keyword-default": lambda op, x, weight: op(x, weight, 2.0, width=None),
}
INPLACE_FORMS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "positional": lambda op, x, other: op(x, other),
    "explicit-default": lambda op, x, other: op(x, other, 1.0),
    "keyword": lambda op, x, other: op(x_other=other, x=x),
    "mixed": lambda op, x, other: op(x, x_other=other, factor=1.0),
}


class Recorder(TorchDispatchMode):
    """Notes the overloads it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def compiled(function: Callable[..., Any], *args: Any) -> tuple[Any, list[torch.fx.Node]]:
    """Result of a full-graph compile with a backend that changes nothing, and its op nodes."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    with torch.no_grad():
        result = torch.compile(function, backend=backend, fullgraph=True)(*args)
    (graph,) = graphs
    nodes = [each for each in graph.graph.nodes if each.op == "call_function"]
    return result, [each for each in nodes if isinstance(each.target, torch._ops.OpOverload)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_result_and_node(scale: IrOp, form: str) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return FORMS[form](scale, x, weight)

    expected = X * WEIGHT * 2
    assert torch.equal(function(X, WEIGHT), expected)
    result, (node,) = compiled(function, X, WEIGHT)
    assert torch.equal(result, expected)
    assert node.target is scale.torch_op
    assert node.args[2:] == (2.0, None)
    assert node.kwargs == {}


@pytest.mark.parametrize("form", INPLACE_FORMS)
def test_every_form_of_maybe_inplace_gives_the_same_result_and_node(
    writing: IrOp, form: str
) -> None:
    def function(x: Tensor, other: Tensor) -> Any:
        return INPLACE_FORMS[form](writing.maybe_inplace, x, other)

    writing.registry.priorities.set({"add_twice": "writer"})
    once, twice = function(X.clone(), X.clone())
    assert torch.equal(once, 2 * X)
    assert torch.equal(twice, 3 * X)
    (once, twice), (node,) = compiled(function, X.clone(), X.clone())
    assert torch.equal(twice, 3 * X)
    assert node.target is writing.torch_maybe_inplace
    assert node.args[2:] == (1.0,)
    assert node.kwargs == {}


def test_a_compiled_module_keeps_one_node_for_each_call(registry: Registry, scale: IrOp) -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(WEIGHT)
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.scale(x, self.weight, factor=0.5)
            return x.relu()

    module = Layers()
    result, nodes = compiled(module, X)
    assert [node.target for node in nodes] == [scale.torch_op] * 3
    with torch.no_grad():
        assert torch.equal(result, module(X))
        assert copy.deepcopy(module).scale is scale


def test_a_change_of_priority_does_not_recompile(
    registry: Registry, scale: IrOp, add_scale: Callable[..., None]
) -> None:
    add_scale("nine", 9.0)
    compiles: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        compiles.append(1)
        return graph

    torch._dynamo.reset()
    function = torch.compile(lambda x: scale(x, None, 1.0), backend=backend, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(function(X), X)
        registry.priorities.set({"scale": "nine"})
        assert torch.equal(function(X), torch.full_like(X, 9))
    assert compiles == [1]


def test_stock_inductor_runs_both_overloads(writing: IrOp) -> None:
    def function(x: Tensor, other: Tensor) -> Any:
        once, _ = writing(x, other)
        return writing.maybe_inplace(once * 1, other)

    writing.registry.priorities.set({"add_twice": "writer"})
    torch._dynamo.reset()
    x, other = X.clone(), torch.ones_like(X)
    with torch.no_grad():
        once, twice = torch.compile(function, fullgraph=True)(x, other)
    assert torch.equal(once, X + 2)
    assert torch.equal(twice, X + 3)
    assert torch.equal(x, X)


def test_eager_default_leaves_its_inputs_alone(writing: IrOp) -> None:
    writing.registry.priorities.set({"add_twice": "writer"})
    x, other = X.clone(), torch.ones_like(X)
    for call in (writing, writing.torch_op):
        once, twice = call(x, other, 1.0)
        assert torch.equal(x, X)
        assert torch.equal(other, torch.ones_like(X))
        assert {once.data_ptr(), twice.data_ptr()}.isdisjoint({x.data_ptr(), other.data_ptr()})


def test_eager_maybe_inplace_reuses_its_activations(writing: IrOp) -> None:
    writing.registry.priorities.set({"add_twice": "writer"})
    x, other = X.clone(), torch.ones_like(X)
    once, twice = writing.maybe_inplace(x, other)
    assert (once.data_ptr(), twice.data_ptr()) == (x.data_ptr(), other.data_ptr())
    assert torch.equal(once, X + 1)


def test_maybe_inplace_through_the_dispatcher_never_returns_its_inputs(writing: IrOp) -> None:
    writing.registry.priorities.set({"add_twice": "writer"})
    x, other = X.clone(), torch.ones_like(X)
    once, _ = writing.torch_maybe_inplace(x, other)
    assert torch.equal(x, X)
    assert once.data_ptr() != x.data_ptr()


def test_maybe_inplace_without_permission_says_what_to_declare(scale: IrOp) -> None:
    assert scale.torch_maybe_inplace is None
    with pytest.raises(ArgumentError, match="allow_inplace=True"):
        scale.maybe_inplace(X, None, 1.0)


def test_dispatch_modes_see_the_op_and_not_its_parts(scale: IrOp) -> None:
    with Recorder() as recorder:
        result = scale(X, None, 2.0)
    assert torch.equal(result, 2 * X)
    assert recorder.seen == [str(scale.torch_op)]


def test_fake_tensors_take_natives_shape(scale: IrOp) -> None:
    with FakeTensorMode() as mode:
        inside = scale(torch.empty(3, 4), None, 2.0, 2)
    assert tuple(inside.shape) == (3, 2)
    outside = scale(mode.from_tensor(X), None, 2.0, 3)
    assert tuple(outside.shape) == (2, 3)


def test_make_fx_traces_the_op(scale: IrOp) -> None:
    graph = make_fx(lambda x: scale(x, None, 2.0))(X)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets == [scale.torch_op]


def test_functorch_sees_the_op_instead_of_wrapped_storage(scale: IrOp) -> None:
    result = torch.vmap(lambda row: scale(row, None, 2.0))(X)
    assert torch.equal(result, 2 * X)


def test_parameters_and_subclasses_are_accepted(scale: IrOp) -> None:
    class Marked(torch.Tensor):
        """A subclass without a behaviour of its own."""

    frozen = Parameter(X.clone(), requires_grad=False)
    assert torch.equal(scale(frozen, Parameter(WEIGHT, requires_grad=False), 1.0), X * WEIGHT)
    assert torch.equal(scale(X.as_subclass(Marked), None, 2.0), 2 * X)


@pytest.mark.parametrize("through_torch", [False, True])
def test_inputs_that_require_grad_are_refused_by_name(scale: IrOp, through_torch: bool) -> None:
    call = scale.torch_op if through_torch else scale
    weight = Parameter(WEIGHT)
    with pytest.raises(GradientError, match=r"`scale` got \['weight'\]"):
        call(X, weight, 1.0)
    with torch.no_grad():
        assert torch.equal(call(X, weight, 1.0), X * WEIGHT)
    with torch.inference_mode():
        assert torch.equal(call(X, weight, 1.0), X * WEIGHT)


def test_inputs_that_require_grad_are_refused_while_tracing(scale: IrOp) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x, w: scale(x, w, 1.0), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"`scale` got \['weight'\] that require grad"):
        function(X, Parameter(WEIGHT))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((3.0, None, 1.0), "`scale` got float for `x`"),
        ((X, "w", 1.0), "`scale` got str for `weight`"),
        ((X, None, "1"), "`scale` got str for `factor`"),
        ((X, None, 1.0, 2.5), "`scale` got float for `width`"),
    ],
)
@pytest.mark.parametrize("provider", ["typed", "native"])
def test_wrong_arguments_are_named(
    scale: IrOp, add_scale: Callable[..., None], args: tuple[Any, ...], words: str, provider: str
) -> None:
    add_scale("typed", supports_args=lambda x, weight, factor, width=None: weight is None)
    scale.registry.priorities.set({"scale": provider})
    for _ in range(2):
        with pytest.raises(ArgumentError, match=words):
            scale(*args)
        scale(X, None, 1.0)


def test_a_failure_of_an_implementation_stays_what_it_is(scale: IrOp) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="size of tensor"):
            scale(X, torch.ones(3), 1.0)
        scale(X, None, 1.0)


def test_an_op_without_required_tensors_works(registry: Registry) -> None:
    @registry.register_op
    def fill(count: int, like: Tensor | None = None) -> Tensor:
        return torch.full((count,), 1.0, dtype=None if like is None else like.dtype)

    assert fill(3).sum() == 3
    assert fill(2, torch.ones(1, dtype=torch.float64)).dtype == torch.float64
