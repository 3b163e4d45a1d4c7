import pytest
import torch
from torch import Tensor

from ir_core import IrOp, Registry

opcheck = torch.library.opcheck  # noqa: TID251
X = torch.arange(8.0).reshape(2, 4)


def test_ops_live_in_the_registrys_namespace() -> None:
    registry = Registry("ir_test_namespace")

    @registry.register_op
    def negate(x: Tensor) -> Tensor:
        return -x

    packet = torch.ops.ir_test_namespace.negate
    assert negate.torch_op is packet.default
    assert packet.overloads() == ["default"]
    assert torch.equal(packet(X), -X)


def test_opcheck_passes_for_both_overloads(writing: IrOp) -> None:
    writing.registry.priorities.set({"add_twice": "writer"})
    for overload in (writing.torch_op, writing.torch_maybe_inplace):
        opcheck(overload, (X.clone(), torch.ones_like(X)))
        opcheck(overload, (X.clone(), torch.ones_like(X)), {"factor": 2.0})


def test_opcheck_passes_for_an_op_that_mutates(registry: Registry) -> None:
    @registry.register_op(mutates=["cache"], splits=True, opaque=True)
    def store(x: Tensor, cache: Tensor, slots: Tensor) -> None:
        cache.index_copy_(0, slots, x)

    cache = torch.zeros(5, 4)
    store(X, cache, torch.tensor([3, 1]))
    assert torch.equal(cache[3], X[0])
    assert "(a1!) cache" in str(store.torch_op._schema)
    opcheck(store.torch_op, (X, cache, torch.tensor([3, 1])))
    opcheck(store.native.torch_op, (X, cache, torch.tensor([3, 1])))


def test_a_registered_fake_replaces_native(registry: Registry) -> None:
    @registry.register_op
    def count(x: Tensor) -> Tensor:
        return torch.full((int(x.sum().item()),), 1.0)

    @count.register_fake
    def fake(x: Tensor) -> Tensor:
        return x.new_empty(7)

    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert tuple(count(torch.empty(2)).shape) == (7,)
    assert tuple(count(torch.ones(2)).shape) == (2,)
    assert tuple(fake(torch.ones(2)).shape) == (7,)


def test_an_opaque_implementation_has_a_torch_op_that_leaves_inputs_alone(writing: IrOp) -> None:
    @writing.register_impl("sealed", inplace=True, opaque=True)
    def sealed(x: Tensor, x_other: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        return x.add_(x_other), x_other.mul_(2)

    overload = sealed.torch_op
    assert overload.namespace == f"{writing.registry.namespace}_impl"
    assert str(overload).endswith("add_twice.sealed")
    x, other = X.clone(), torch.ones_like(X)
    once, twice = overload(x, other)
    assert torch.equal(once, X + 1)
    assert torch.equal(twice, 2 * other)
    assert torch.equal(x, X)
    opcheck(overload, (x, other))
    assert writing.implementations["writer"].torch_op is None


def test_registries_do_not_see_each_other() -> None:
    one, two = Registry(), Registry()

    def negate(x: Tensor) -> Tensor:
        return -x

    first, second = one.register_op(negate), two.register_op(negate)
    assert first.torch_op is not second.torch_op

    @first.register_impl("only_here")
    def only_here(x: Tensor) -> Tensor:
        return -x

    assert "only_here" not in second.implementations


@pytest.mark.parametrize("overload", ["", "maybe_inplace"])
def test_symbolic_sizes_pass_through_the_fakes(add_twice: IrOp, overload: str) -> None:
    op = add_twice.torch_maybe_inplace if overload else add_twice.torch_op

    def function(x: Tensor) -> Tensor:
        return op(x, x * 2)[0]

    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
        for tokens in (2, 5):
            x = torch.ones(tokens, 3)
            assert torch.equal(compiled(x), 3 * x)
