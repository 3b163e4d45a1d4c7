"""A tape runs what ops were called for: the same bits, on fewer rows too, and nothing left out."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from ir_kernels.library import kernels
from ir_kernels.tape import Tape, TapeError

TOKENS, HIDDEN, VOCABULARY = 6, 64, 40

pytestmark = pytest.mark.usefixtures("compiled")

Forward = Callable[[Tensor], Tensor]


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """As many threads, also more than there are cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def make_layers(dtype: torch.dtype, num_layers: int = 2) -> Forward:
    """An embedding, and layers that norm, multiply, gate and add."""
    torch.manual_seed(0)
    embedding = torch.randn(VOCABULARY + 8, HIDDEN).to(dtype)
    norm = torch.rand(HIDDEN).to(dtype)
    up = torch.randn(num_layers, 6 * HIDDEN, HIDDEN).to(dtype) / 8
    down = torch.randn(num_layers, HIDDEN, 3 * HIDDEN).to(dtype) / 8

    def forward(ids: Tensor) -> Tensor:
        residual = kernels.embedding_panels.default(ids, embedding)
        x = kernels.rms_norm.default(residual, norm, 1e-5)
        for layer in range(num_layers):
            gates = kernels.linear_panels.default(x, up[layer], None)
            x = kernels.linear_panels.default(
                kernels.silu_and_mul.default(gates), down[layer], None
            )
            kernels.fused_add_rms_norm.default(x, residual, norm, 1e-5)
        return x

    return forward


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("threads")
def test_a_replay_computes_the_bits_of_the_ops_on_any_number_of_rows(dtype: torch.dtype) -> None:
    forward = make_layers(dtype)
    ids = torch.zeros(TOKENS, dtype=torch.int64)
    tape, result = Tape.record(TOKENS, lambda: forward(ids))
    assert tape.num_steps == 10
    for num_tokens in (1, TOKENS, 3, 2):
        ids[:num_tokens] = torch.arange(num_tokens) * 5 + num_tokens
        tape.poison()
        tape.replay(num_tokens, num_tokens)
        assert torch.equal(result[:num_tokens], forward(ids[:num_tokens]))
        assert result[num_tokens:].isnan().all()


def test_memory_is_used_again_by_later_layers() -> None:
    ids = torch.zeros(TOKENS, dtype=torch.int64)
    few, many = (make_layers(torch.float32, each) for each in (3, 9))
    tapes = [Tape.record(TOKENS, lambda each=each: each(ids))[0] for each in (few, many)]
    assert tapes[0].num_bytes == tapes[1].num_bytes


def test_memory_is_the_tapes_own() -> None:
    forward = make_layers(torch.float32)
    ids = torch.zeros(TOKENS, dtype=torch.int64)
    tape, result = Tape.record(TOKENS, lambda: forward(ids))
    tape.replay(1, 1)
    expected = result[:1].clone()
    others = [torch.full((TOKENS, HIDDEN), 7.0) for _ in range(50)]
    tape.replay(1, 1)
    assert torch.equal(result[:1], expected)
    assert all((each == 7.0).all() for each in others)
    tape.close()
    assert torch.equal(result[:1], expected)


def test_what_is_recorded_is_not_computed() -> None:
    written = torch.ones(TOKENS, HIDDEN)
    norm = torch.ones(HIDDEN)

    def call() -> None:
        kernels.fused_add_rms_norm.default(written, written.clone(), norm, 1e-5)

    with pytest.raises(TapeError, match=r"`aten\.clone\.default` computes what no tape holds"):
        Tape.record(TOKENS, call)
    residual = torch.ones(TOKENS, HIDDEN)
    tape, _ = Tape.record(
        TOKENS, lambda: kernels.fused_add_rms_norm.default(written, residual, norm, 1e-5)
    )
    assert (written == 1).all()
    assert (residual == 1).all()
    tape.replay(2, 2)
    assert (residual[:2] == 2).all()
    assert (residual[2:] == 1).all()


def test_an_op_without_a_step_is_refused_by_name() -> None:
    x = torch.randn(TOKENS, HIDDEN)
    with pytest.raises(TapeError, match=r"`aten\.add\.Tensor` computes"):
        Tape.record(TOKENS, lambda: kernels.silu_and_mul.default(x) + 1)
    # Nothing is recorded any more: ops compute.
    assert kernels.silu_and_mul.default(x).isfinite().all()


def test_rows_that_are_no_tokens_are_refused() -> None:
    x = torch.randn(TOKENS + 1, HIDDEN)
    with pytest.raises(TapeError, match=r"silu_and_mul.* it works on 7 rows, .* 6 tokens"):
        Tape.record(TOKENS, lambda: kernels.silu_and_mul.default(x))


def test_an_argument_that_would_be_copied_is_refused() -> None:
    x = torch.randn(HIDDEN, TOKENS).t()
    with pytest.raises(
        TapeError, match=r"silu_and_mul.* cannot be recorded: it copies an argument"
    ):
        Tape.record(TOKENS, lambda: kernels.silu_and_mul.default(x))


def test_a_failure_leaves_the_tape_as_it_was() -> None:
    forward = make_layers(torch.float32)
    ids = torch.zeros(TOKENS, dtype=torch.int64)
    tape, result = Tape.record(TOKENS, lambda: forward(ids))
    ids[1] = VOCABULARY + 8
    with pytest.raises(RuntimeError, match=r"`input_ids\[1\]` is 48"):
        tape.replay(2, 2)
    ids[1] = 3
    tape.replay(2, 2)
    assert torch.equal(result[:2], forward(ids[:2]))


@pytest.mark.parametrize(("tokens", "requests"), [(0, 1), (TOKENS + 1, 1), (2, 0), (2, 3)])
def test_more_than_was_recorded_is_refused(tokens: int, requests: int) -> None:
    x = torch.randn(TOKENS, HIDDEN)
    tape, _ = Tape.record(TOKENS, lambda: kernels.silu_and_mul.default(x))
    with pytest.raises(RuntimeError, match=r"tape .* is for up to 6|`requests` must be from 1"):
        tape.replay(tokens, requests)


def test_a_closed_tape_is_gone() -> None:
    x = torch.randn(TOKENS, HIDDEN)
    tape, _ = Tape.record(TOKENS, lambda: kernels.silu_and_mul.default(x))
    tape.close()
    tape.close()
    with pytest.raises(RuntimeError, match="is closed"):
        tape.replay(1, 1)


def test_one_thread_records_one_tape_at_a_time() -> None:
    x = torch.randn(TOKENS, HIDDEN)

    def call() -> None:
        Tape.record(TOKENS, lambda: kernels.silu_and_mul.default(x))

    with pytest.raises(RuntimeError, match="records a tape already"):
        Tape.record(TOKENS, call)
