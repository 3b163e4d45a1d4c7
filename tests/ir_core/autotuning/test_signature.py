import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from ir_core import IrOp, Registry
from ir_core.autotuning.signature import has_signature, signature_of, signature_reads

WEIGHT = torch.ones(4)


def test_signature_hides_the_batch_and_names_all_else(scale: IrOp) -> None:
    assert signature_of(scale, (torch.ones(3, 4), WEIGHT, 2.0, None)) == (
        "x: float32[*, 4], weight: float32[4], factor: 2.0, width: None"
    )


def test_calls_of_another_batch_have_the_same_signature(scale: IrOp) -> None:
    one, many = (signature_of(scale, (torch.ones(n, 4), WEIGHT, 2.0, None)) for n in (1, 9))
    assert one == many


def test_calls_of_other_sizes_dtypes_or_scalars_have_another(scale: IrOp) -> None:
    calls = [
        (torch.ones(1, 4), WEIGHT, 2.0, None),
        (torch.ones(1, 5), WEIGHT, 2.0, None),
        (torch.ones(1, 4).bfloat16(), WEIGHT, 2.0, None),
        (torch.ones(1, 4), None, 2.0, None),
        (torch.ones(1, 4), WEIGHT, 3.0, None),
        (torch.ones(1, 4), WEIGHT, 2.0, 1),
        (torch.ones(1, 4, device="meta"), WEIGHT, 2.0, None),
    ]
    assert len({signature_of(scale, each) for each in calls}) == len(calls)


def test_layouts_of_weights_are_told_apart(project: IrOp) -> None:
    plain = (torch.ones(1, 4), torch.ones(2, 4), None, "plain")
    packed = (torch.ones(1, 4), torch.ones(2, 4), None, "upside_down")
    assert signature_of(project, plain) != signature_of(project, packed)


def test_fakes_with_a_symbolic_batch_have_the_signature_of_tensors(scale: IrOp) -> None:
    x = torch.ones(3, 4)
    dims = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(x, symbolic_context=dims)
    assert type(fake.shape[0]) is torch.SymInt
    values = (fake, WEIGHT, 2.0, None)
    assert signature_of(scale, values) == signature_of(scale, (x, *values[1:]))


def test_token_counts_given_as_numbers_are_hidden(registry: Registry) -> None:
    @registry.register_op(token_dims={"num_rows": ()})
    def take(x: Tensor, num_rows: int) -> Tensor:
        return x[:num_rows].clone()

    assert signature_of(take, (torch.ones(3), 2)) == "x: float32[*], num_rows: *"


def test_a_signature_reads_every_tensor(scale: IrOp) -> None:
    assert {name for name, _ in signature_reads(scale)} == {"x", "weight"}


def test_lists_of_tensors_have_no_signature(registry: Registry, scale: IrOp) -> None:
    @registry.register_op
    def join(xs: list[Tensor]) -> Tensor:
        return torch.cat(xs)

    assert has_signature(scale)
    assert not has_signature(join)
