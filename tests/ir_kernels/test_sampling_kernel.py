"""sample_tokens in C++: the tokens of native, on every ISA, whatever the parameters."""

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels.sample_tokens.vllm_c import sample_tokens

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

pytestmark = pytest.mark.usefixtures("isa")


def arguments(rows: int, size: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
    """Rows of all shapes and temperatures, half of each cut and a fifth of all greedy."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random, dtype=torch.float64)

    def half(cut: Tensor, uncut: float) -> Tensor:
        return torch.where(draw(rows) < 0.5, cut, uncut)

    x = torch.randn(rows, size, generator=random) * draw(rows, 1) * 6
    x[draw(rows, size) < 0.05] = -torch.inf
    temperature = torch.where(draw(rows) < 0.2, 0.0, 2 * draw(rows))
    return (
        x.to(dtype),
        temperature.float(),
        half(0.3 * draw(rows), 0.0).float(),
        half(min(1.2 * size, 500) * draw(rows), 0.0).long(),
        half(draw(rows).clamp_min(0.01), 1.0),
        torch.randint(-(2**63), 2**63 - 1, (rows,), generator=random),
        torch.randint(0, 2**31, (rows,), generator=random),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "size"), [(40, 1), (40, 2), (60, 17), (60, 255), (40, 256), (40, 257), (6, 49152)]
)
def test_chooses_the_tokens_of_native(rows: int, size: int, dtype: torch.dtype) -> None:
    given = arguments(rows, size, dtype, seed=rows + size)
    assert sample_tokens(*given).tolist() == ir.ops.sample_tokens.native(*given).tolist()


def test_long_rows_have_larger_blocks() -> None:
    given = arguments(2, 300_001, torch.bfloat16, seed=1)
    assert sample_tokens(*given).tolist() == ir.ops.sample_tokens.native(*given).tolist()


def test_rows_beyond_what_the_kernel_keeps_are_refused() -> None:
    given = arguments(1, 2, torch.bfloat16, seed=1)
    x = torch.zeros(1, 4_194_305, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="at most 4194304 are supported"):
        sample_tokens(x, *given[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_a_usable_maximum_have_no_token(dtype: torch.dtype) -> None:
    given = arguments(6, 700, dtype, seed=2)
    x = given[0]
    x[0, 699], x[1, 3], x[2, 5], x[3] = torch.nan, -torch.tensor(torch.nan), torch.inf, -torch.inf
    tokens = sample_tokens(*given).tolist()
    assert tokens[:4] == [-1] * 4
    assert tokens == ir.ops.sample_tokens.native(*given).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_cold_rows_take_the_largest(dtype: torch.dtype) -> None:
    given = arguments(20, 900, dtype, seed=3)
    coldest = torch.full((20,), 1e-5)
    found = sample_tokens(given[0], coldest, *given[2:])
    values = given[0].gather(1, found[:, None])[:, 0]
    assert torch.equal(values, given[0].amax(1))


def test_reads_any_layout() -> None:
    given = arguments(8, 600, torch.float32, seed=4)
    expected = sample_tokens(*given)
    wide = torch.zeros(8, 1300)
    wide[:, 7:1207:2] = given[0]
    assert torch.equal(sample_tokens(wide[:, 7:1207:2], *given[1:]), expected)
    expanded = given[0][:1].expand(8, -1)
    again = sample_tokens(expanded.contiguous(), *given[1:])
    assert torch.equal(sample_tokens(expanded, *given[1:]), again)


@pytest.mark.parametrize(
    ("at", "wrong", "words"),
    [
        (1, torch.zeros(3), "`temperature` must be a vector on the CPU.*which has 2"),
        (3, torch.zeros(2), "`top_k` must"),
        (4, torch.zeros(2), "`top_p` must"),
        (5, torch.zeros(2, 1, dtype=torch.int64), "`key` must"),
        (6, torch.zeros(2), "`position` must"),
    ],
)
def test_wrong_arguments_are_named(at: int, wrong: Tensor, words: str) -> None:
    given = [*arguments(2, 9, torch.float32, seed=5)]
    given[at] = wrong
    with pytest.raises(RuntimeError, match=words):
        sample_tokens(*given)
