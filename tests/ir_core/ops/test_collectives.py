import pytest
import torch

import ir_core as ir

_X = torch.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_collective_in_a_world_of_one_is_a_copy(name: str) -> None:
    got = getattr(ir.ops, name)(_X)
    assert torch.equal(got, _X)
    got += 1
    assert _X[0, 0] == 0


def test_all_gather_cuts_the_padding() -> None:
    assert torch.equal(ir.ops.all_gather(_X, 3), _X[:3])


def test_all_gather_of_more_rows_than_there_are_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        ir.ops.all_gather(_X, 5)


def test_collectives_give_dense_tensors() -> None:
    strided = _X.T
    assert ir.ops.all_reduce(strided).is_contiguous()
    assert ir.ops.all_gather(strided, 2).is_contiguous()
