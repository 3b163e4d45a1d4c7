"""Each rule of the dialect is broken once; the message names the node and what is wrong."""

import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import ir_core as ir
from ir_passes.dialect import Dialect
from ir_passes.errors import VerificationError
from ir_passes.metadata import fake_of
from ir_passes.verifier import verify

from .conftest import Toy
from .graphs import FakeInputs, node_calling, trace

ROWS, WEIGHT = ("T", 8), (8,)
aten = torch.ops.aten


def _module() -> GraphModule:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = (x * 2).view(-1, 2, 4).view(-1, 8)
        return ir.ops.fused_add_rms_norm(h, r, w, 1e-5)

    return trace(model, ROWS, ROWS, WEIGHT).module


def _overload(module: GraphModule) -> None:
    node_calling(
        module, "fused_add_rms_norm"
    ).target = ir.ops.fused_add_rms_norm.torch_maybe_inplace


def _missing_argument(module: GraphModule) -> None:
    node = node_calling(module, "fused_add_rms_norm")
    node.args = node.args[:3]


def _surplus_argument(module: GraphModule) -> None:
    node_calling(module, "mul").kwargs = {"scale": 3}


def _wrong_type(module: GraphModule) -> None:
    node_calling(module, "fused_add_rms_norm").update_arg(2, 3)


def _write(module: GraphModule) -> None:
    node_calling(module, "mul").target = aten.mul_.Tensor


def _no_fake(module: GraphModule) -> None:
    del node_calling(module, "mul").meta["val"]


def _output_that_is_not_there(module: GraphModule) -> None:
    node = next(each for each in module.graph.nodes if each.target is operator.getitem)
    node.update_arg(1, 2)


def _output_of_one_tensor(module: GraphModule) -> None:
    node = next(each for each in module.graph.nodes if each.target is operator.getitem)
    node.update_arg(0, node_calling(module, "mul"))


def _python_function(module: GraphModule) -> None:
    node_calling(module, "mul").target = torch.mul


def _order(module: GraphModule) -> None:
    node = node_calling(module, "mul")
    node.append(node_calling(module, "fused_add_rms_norm"))


def _method(module: GraphModule) -> None:
    node = node_calling(module, "mul")
    node.op, node.target = "call_method", "mul"


BROKEN: dict[str, tuple[Callable[[GraphModule], None], str]] = {
    "overload": (_overload, "overload `maybe_inplace`; a functional graph has `default` only"),
    "missing": (_missing_argument, r"misses \['epsilon'\]"),
    "surplus": (_surplus_argument, "has no parameter `scale`"),
    "type": (_wrong_type, "got int for `weight`"),
    "write": (_write, "`aten.mul_.Tensor` writes `self`"),
    "fake": (_no_fake, "`mul` .*: has no fake value"),
    "index": (_output_that_is_not_there, "takes output 2 of 2"),
    "tuple": (_output_of_one_tensor, "takes output 0 of a value that has no outputs"),
    "function": (_python_function, "neither a torch op nor arithmetic on sizes"),
    "order": (_order, "used before it has been defined"),
    "method": (_method, "is a call_method"),
}


@pytest.mark.parametrize(("damage", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_graph_is_named(damage: Callable[[GraphModule], None], message: str) -> None:
    module = _module()
    verify(module.graph, Dialect())
    damage(module)
    with pytest.raises(VerificationError, match=message):
        verify(module.graph, Dialect(), changed=())


def test_all_problems_are_listed() -> None:
    module = _module()
    _missing_argument(module)
    _write(module)
    with pytest.raises(VerificationError, match=r"(?s)mul_.*\n.*misses"):
        verify(module.graph, Dialect(), changed=())


@pytest.mark.parametrize(
    ("shape", "dtype", "strides", "message"),
    [
        (("T", 9), torch.float32, None, "shape"),
        ((6, 8), torch.float32, None, "shape"),
        (("T", 8), torch.bfloat16, None, "dtype torch.bfloat16, not torch.float32"),
        ((8, "T"), torch.float32, "transposed", "strides"),
    ],
)
def test_stale_fake_value_is_found(
    shape: tuple[int | str, ...], dtype: torch.dtype, strides: str | None, message: str
) -> None:
    module = _module()
    node = node_calling(module, "mul")
    fakes = FakeInputs()
    fakes.tokens = fake_of(node).shape[0]
    fakes.mode = fake_of(node).fake_mode
    stale = fakes.tensor(shape, dtype)
    with fakes.mode:
        node.meta["val"] = stale.t() if strides else stale
    with pytest.raises(VerificationError, match=f"`mul`.*{message}"):
        verify(module.graph, Dialect(), changed=[node])
    verify(module.graph, Dialect(), changed=())


def test_fake_value_in_other_memory_than_the_view_is_found() -> None:
    module = _module()
    node = node_calling(module, "fused_add_rms_norm").args[0]
    assert isinstance(node, torch.fx.Node)
    with fake_of(node).fake_mode:
        node.meta["val"] = fake_of(node).clone()
    with pytest.raises(VerificationError, match="memory of 0 of its arguments, not of 1"):
        verify(module.graph, Dialect())


def test_declared_write_is_in_the_dialect_and_another_is_not(toy: Toy) -> None:
    def model(x: Tensor, cache: Tensor) -> Tensor:
        toy.store(x, cache)
        return x * 2

    module = trace(model, ROWS, ROWS, dialect=toy.dialect).module
    verify(module.graph, toy.dialect)
    with pytest.raises(VerificationError, match="writes `cache`"):
        verify(module.graph, Dialect())


def test_op_that_nobody_registered_is_named(toy: Toy) -> None:
    module = trace(toy.scale, ROWS, dialect=toy.dialect).module
    library = toy.dialect.registry.binding._library
    library.define("stray(Tensor x) -> Tensor")
    node_calling(module, "scale").target = getattr(
        torch.ops, toy.dialect.registry.namespace
    ).stray.default
    with pytest.raises(VerificationError, match=r"stray.*not registered"):
        verify(module.graph, toy.dialect, changed=())


def test_splitting_ops_can_be_named_in_place_of_those_declared(toy: Toy) -> None:
    module = trace(toy.scale, ROWS, dialect=toy.dialect).module
    node = node_calling(module, "scale")
    assert not toy.dialect.is_splitting(node)
    registry = toy.dialect.registry
    assert Dialect(registry, ("scale",)).is_splitting(node)
    assert Dialect(registry, (f"{registry.namespace}::scale",)).is_splitting(node)
    assert Dialect(registry, (f"{registry.namespace}.scale",)).is_splitting(node)
    assert not Dialect(registry, ("store",)).is_splitting(node)
