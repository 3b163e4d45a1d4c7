import pytest
import torch
from torch import Tensor

from ir_core import IrOp, Registry
from ir_core.autotuning.recorder import CallRecorder, copy_of, why_once

X, WEIGHT = torch.ones(2, 4), torch.ones(4)


def test_calls_are_noted_by_op_and_signature(registry: Registry, scale: IrOp) -> None:
    with CallRecorder(registry) as recorder:
        scale(X, WEIGHT, 2.0)
        scale(X, WEIGHT, factor=2.0)
        scale(X, None, 2.0)
    assert [len(each.samples) for each in recorder.calls.values()] == [2, 1]
    assert [key[0] for key in recorder.calls] == ["scale", "scale"]


def test_in_place_calls_are_calls(registry: Registry, writing: IrOp) -> None:
    with CallRecorder(registry) as recorder:
        writing.maybe_inplace(X.clone(), X.clone())
    assert len(recorder.calls) == 1


def test_results_are_the_same_while_recording(registry: Registry, scale: IrOp) -> None:
    with CallRecorder(registry):
        recorded = scale(X, WEIGHT, 3.0)
    assert torch.equal(recorded, scale(X, WEIGHT, 3.0))


def test_samples_have_their_own_weights_and_share_a_copy_of_the_tokens(
    registry: Registry, scale: IrOp
) -> None:
    x, weights = torch.ones(2, 4), (torch.ones(4), torch.zeros(4))
    with CallRecorder(registry) as recorder:
        for weight in weights:
            scale(x, weight, 2.0)
    x.zero_()
    ((first, second),) = (each.samples for each in recorder.calls.values())
    assert first[0] is second[0]
    assert torch.equal(first[0], X)
    assert first[1] is weights[0]
    assert second[1] is weights[1]


def test_samples_are_bounded(registry: Registry, scale: IrOp) -> None:
    with CallRecorder(registry) as recorder:
        for _ in range(100):
            scale(X, WEIGHT, 2.0)
    ((calls),) = recorder.calls.values()
    assert len(calls.samples) == 32


def test_what_cannot_be_called_again_is_left_out(registry: Registry, scale: IrOp) -> None:
    @registry.register_op(mutates=("cache",))
    def write(x: Tensor, cache: Tensor) -> None:
        cache.copy_(x)

    @registry.register_op(opaque=True)
    def exchange(x: Tensor) -> Tensor:
        return x.clone()

    @registry.register_op
    def reduce(x: Tensor, group: str = "tp") -> Tensor:
        return x.clone()

    with CallRecorder(registry) as recorder:
        write(X, X.clone())
        exchange(X)
        reduce(X)
    assert not recorder.calls
    assert list(recorder.left_out) == ["write", "exchange", "reduce"]
    assert why_once(scale) is None
    assert "it writes to `cache`" in recorder.left_out["write"]
    assert "opaque" in recorder.left_out["exchange"]
    assert "one that repeats a call would wait" in recorder.left_out["reduce"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(24.0).reshape(4, 6)[:, 1:3],
        torch.arange(4.0)[None].expand(1, 4),
        torch.empty(0, 4),
    ],
    ids=["dense", "transposed", "slice", "one row", "empty"],
)
def test_a_copy_lies_as_the_tensor_does(tensor: Tensor) -> None:
    copy = copy_of(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not len(copy)


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(4.0).expand(3, 4), torch.arange(9.0).as_strided((4, 3), (2, 1))],
    ids=["expanded", "overlapping"],
)
def test_a_copy_of_shared_elements_is_dense(tensor: Tensor) -> None:
    assert torch.equal(copy_of(tensor), tensor)
    assert copy_of(tensor).is_contiguous()
