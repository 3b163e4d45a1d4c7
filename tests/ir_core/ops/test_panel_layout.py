"""`panel16` against its definition, written as a loop over rows and units."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ir_core as ir
from ir_core.ops.panel_layout import pack, pack_panels, unpack, unpack_panels

# Whole panels or not, whole units or not, fewer bytes than a unit, one row, none.
SHAPES = [(32, 64), (48, 8), (33, 64), (13, 37), (35, 45), (3, 1), (1, 5), (16, 0), (0, 8)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8]


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    # By bytes, so that NaN payloads, infinities and subnormal numbers are among them.
    count = torch.Size(shape).numel() * dtype.itemsize
    random = torch.Generator().manual_seed(1)
    data = torch.randint(256, (count,), generator=random, dtype=torch.uint8)
    return data.view(dtype).view(shape)


def _defined(matrix: Tensor, unit: int) -> bytes:
    rows = [bytes(row.contiguous().view(torch.uint8).tolist()) for row in matrix.flatten(1)]
    packed = b""
    for first in range(0, len(rows), 16):
        panel = rows[first : first + 16]
        for at in range(0, len(panel[0]), unit):
            packed += b"".join(row[at : at + unit] for row in panel)
    return packed


def _bytes(matrix: Tensor) -> bytes:
    return bytes(matrix.contiguous().view(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("unit", [2, 4])
def test_packing_is_as_defined_and_unpacking_its_inverse(
    shape: tuple[int, int], dtype: torch.dtype, unit: int
) -> None:
    matrix = _random(shape, dtype)
    expected = _defined(matrix, unit) if matrix.numel() else b""
    packed = pack_panels(matrix.clone(), unit)
    assert (packed.shape, packed.dtype) == (matrix.shape, dtype)
    assert _bytes(packed) == expected
    plain = unpack_panels(packed, unit)
    assert (plain.shape, plain.dtype) == (matrix.shape, dtype)
    assert _bytes(plain) == _bytes(matrix)


@pytest.mark.parametrize("shape", [(16 * 700, 6), (48, 40000), (64, 2048)], ids=str)
def test_more_than_one_batch_of_panels_is_packed_as_defined(shape: tuple[int, int]) -> None:
    matrix = torch.arange(shape[0] * shape[1], dtype=torch.int32).view(shape)
    panels = matrix.view(-1, 16, shape[1]).mT.contiguous()
    packed = pack_panels(matrix.clone(), 4)
    assert torch.equal(packed.view(panels.shape), panels)
    assert torch.equal(unpack_panels(packed, 4), matrix)


def test_a_bfloat16_panel_holds_pairs_of_sixteen_rows() -> None:
    matrix = torch.arange(32 * 6, dtype=torch.bfloat16).view(32, 6)
    panels = pack_panels(matrix.clone(), 4).view(2, 3, 16, 2)
    assert panels[1, 2, 5].tolist() == matrix[21, 4:6].tolist()


def test_a_contiguous_matrix_is_packed_where_it_lies() -> None:
    matrix = torch.randn(32, 8)
    before = matrix.data_ptr()
    packed = pack_panels(matrix, 4)
    assert packed is matrix
    assert packed.data_ptr() == before
    parameter = torch.nn.Parameter(torch.randn(32, 8))
    with torch.no_grad():
        assert pack_panels(parameter, 4) is parameter


class Allocations(TorchDispatchMode):
    """Bytes of the largest tensor that is made inside."""

    largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func._schema.name not in ("aten::copy_", "aten::detach"):
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize(("shape", "bound"), [((4096, 64), 131068), ((64, 16384), 16 * 16384 * 4)])
def test_packing_needs_little_memory_beside_the_matrix(shape: tuple[int, int], bound: int) -> None:
    matrix = torch.zeros(shape)
    with Allocations() as seen:
        pack_panels(matrix, 4)
    assert 0 < seen.largest <= bound < matrix.nbytes


def test_a_slice_is_packed_in_a_copy() -> None:
    wide = torch.randn(20, 16)
    before = wide.clone()
    packed = pack_panels(wide[:, 3:10], 4)
    assert packed.is_contiguous()
    assert torch.equal(unpack_panels(packed, 4), wide[:, 3:10])
    assert torch.equal(wide, before)


def test_rows_of_a_larger_tensor_are_packed_alone() -> None:
    # Their first byte lies where no 4-byte word begins.
    whole = _random((21, 10), torch.int8)
    rows = whole.clone()[3:]
    assert rows.data_ptr() % 4 == 2
    assert _bytes(pack_panels(rows, 4)) == _defined(whole[3:], 4)


def test_scales_are_packed_by_element_and_the_absent_stay_absent() -> None:
    weight, scale = _random((20, 6), torch.uint8), torch.randn(20, 3, dtype=torch.float16)
    packed_weight, packed_scale, absent = pack(weight.clone(), scale.clone(), None)
    assert absent is None
    assert packed_weight is not None
    assert packed_scale is not None
    assert _bytes(packed_weight) == _defined(weight, 4)
    assert _bytes(packed_scale) == _defined(scale, 2)
    plain_weight, plain_scale, absent = unpack(packed_weight, packed_scale, None)
    assert absent is None
    assert plain_weight is not None
    assert plain_scale is not None
    assert torch.equal(plain_weight, weight)
    assert torch.equal(plain_scale, scale)


@pytest.mark.parametrize(
    "name",
    ["linear", "linear_w4a16", "linear_w8a16", "linear_w8a8", "embedding", "embedding_w8a16"],
)
def test_every_op_on_loaded_matrices_can_have_panels(name: str) -> None:
    assert ir.registry()[name].layouts[:2] == ("plain", "panel16")
