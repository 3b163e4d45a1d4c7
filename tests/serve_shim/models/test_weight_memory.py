"""Parameters lie apart and aligned, on the device that they are for."""

import pytest
import torch

from serve_shim.errors import ModelLoadError
from serve_shim.models.weight_memory import WeightMemory

_MIB = 2**20


def test_parameters_do_not_overlap_and_are_aligned() -> None:
    memory = WeightMemory()
    sizes = [(3, 5), (1,), (64, 33), (7,)]
    made = [memory.parameter(*size, dtype=torch.bfloat16) for size in sizes]
    for index, parameter in enumerate(made):
        parameter.fill_(index)
    for index, (size, parameter) in enumerate(zip(sizes, made, strict=True)):
        assert parameter.shape == size
        assert not parameter.requires_grad
        assert parameter.eq(index).all()
        assert parameter.data_ptr() % 64 == 0
        assert parameter.is_contiguous()


def test_small_parameters_lie_together_and_large_ones_fit() -> None:
    memory = WeightMemory()
    small = [memory.parameter(256, dtype=torch.float32).data_ptr() for _ in range(3)]
    assert small == [small[0], small[0] + 1024, small[0] + 2048]
    large = memory.parameter(65 * _MIB, dtype=torch.uint8)
    large[-1] = 7
    assert large[-1] == 7
    assert large.data_ptr() % (2 * _MIB) == 0
    assert memory.parameter(_MIB + 1, dtype=torch.uint8).fill_(1).all()


def test_nothing_is_mapped_for_an_empty_parameter_or_another_device() -> None:
    empty = WeightMemory()
    assert empty.parameter(0, 8, dtype=torch.float32).shape == (0, 8)
    meta = WeightMemory(torch.device("meta"))
    assert meta.parameter(2**40, dtype=torch.float32).device.type == "meta"
    assert empty.huge_bytes() is meta.huge_bytes() is None


@pytest.mark.parametrize("size", [2**62, 2**64])
def test_more_than_there_is_is_an_error(size: int) -> None:
    with pytest.raises(ModelLoadError, match=f"gives no {size} bytes more for weights"):
        WeightMemory()._take(size)
