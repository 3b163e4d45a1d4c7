"""What must not change a bit: the ISA, the number of threads, the other rows."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from ir_kernels import library
from ir_kernels.fused_add_rms_norm.vllm_c import fused_add_rms_norm
from ir_kernels.fused_add_rms_norm_quantize_int8_per_token.vllm_c import (
    fused_add_rms_norm_quantize_int8_per_token,
)
from ir_kernels.qk_norm_rope.vllm_c import qk_norm_rope
from ir_kernels.quantize_int8_per_token.vllm_c import quantize_int8_per_token
from ir_kernels.rms_norm.vllm_c import rms_norm
from ir_kernels.rms_norm_quantize_int8_per_token.vllm_c import rms_norm_quantize_int8_per_token
from ir_kernels.rotary_embedding.vllm_c import rotary_embedding
from ir_kernels.silu_and_mul.vllm_c import silu_and_mul
from ir_kernels.silu_and_mul_quantize_int8_per_token.vllm_c import (
    silu_and_mul_quantize_int8_per_token,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Above every grain, so that several threads do take part.
TOKENS, WIDTH = 257, 578

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def restored_isa() -> Iterator[None]:
    before = library.isa()
    yield
    library.set_isa(before)


def all_ops(dtype: torch.dtype, rows: slice = slice(None)) -> list[Tensor]:
    """Outputs of every kernel on some rows of one fixed input."""
    random = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(TOKENS, WIDTH, generator=random)).to(dtype)[rows]
    other = torch.randn(TOKENS, WIDTH, generator=random).to(dtype)[rows]
    weight = torch.randn(WIDTH, generator=random).to(dtype)
    positions = torch.randint(50, (TOKENS,), generator=random)[rows]
    cos_sin = torch.randn(50, WIDTH, generator=random)
    heads = x[:, None], other[:, None]
    return [
        rms_norm(x, weight, 1e-5),
        rms_norm(x, weight.float(), 1e-5),
        rms_norm(x, None, 1e-5),
        *fused_add_rms_norm(x.clone(), other.clone(), weight, 1e-5),
        silu_and_mul(x),
        *quantize_int8_per_token(x),
        *rms_norm_quantize_int8_per_token(x, weight, 1e-5),
        *fused_add_rms_norm_quantize_int8_per_token(x, other, weight.float(), 1e-5),
        *silu_and_mul_quantize_int8_per_token(x),
        *rotary_embedding(x, other, positions, cos_sin, WIDTH),
        *rotary_embedding(x, other, positions, cos_sin, WIDTH, False),
        *qk_norm_rope(*heads, weight, weight.float(), 1e-5, positions, cos_sin, WIDTH),
        *qk_norm_rope(*heads, weight.float(), weight, 1e-5, positions, cos_sin, WIDTH, False),
    ]


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    assert [bool(torch.equal(*each)) for each in zip(got, expected, strict=True)] == [True] * len(
        got
    )


@pytest.mark.usefixtures("restored_isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_isa_gives_the_same_bits(dtype: torch.dtype) -> None:
    results: dict[str, list[Tensor]] = {}
    for isa in library.isas():
        library.set_isa(isa)
        results[isa] = all_ops(dtype)
    for got in results.values():
        assert_same(got, results["portable"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_number_of_threads_changes_no_bit(
    dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    threads(1)
    alone = all_ops(dtype)
    for count in (2, 3):
        threads(count)
        assert_same(all_ops(dtype), alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    together = all_ops(dtype)
    for row in (0, 100, TOKENS - 1):
        rows = slice(row, row + 1)
        assert_same(all_ops(dtype, rows), [each[rows] for each in together])
