import numpy as np
import pytest
import torch

from serve_shim.sampling.logprobs import token_logprobs


def logits(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_logprobs_are_those_of_the_log_softmax() -> None:
    row = [1.0, 3.0, 2.0, -1.0]
    (entry,) = token_logprobs(logits(row), [2], [2])
    expected = torch.log_softmax(torch.tensor(row), 0)
    assert entry.token_id == 2
    assert entry.logprob == pytest.approx(float(expected[2]))
    assert [(c.token_id, c.rank) for c in entry.top] == [(1, 1), (2, 2)]


def test_chosen_token_is_appended_with_the_same_float_and_its_rank() -> None:
    (entry,) = token_logprobs(logits([1.0, 3.0, 2.0, -1.0]), [3], [2])
    assert [c.token_id for c in entry.top] == [1, 2, 3]
    assert entry.top[-1].logprob == entry.logprob
    assert entry.top[-1].rank == 4


def test_chosen_token_among_the_top_is_not_repeated() -> None:
    (entry,) = token_logprobs(logits([1.0, 3.0]), [1], [2])
    assert [c.token_id for c in entry.top] == [1, 0]
    assert entry.top[0].logprob == entry.logprob


def test_no_candidates_leaves_the_chosen_token() -> None:
    (entry,) = token_logprobs(logits([1.0, 3.0]), [0], [0])
    assert [c.token_id for c in entry.top] == [0]


@pytest.mark.parametrize("count", [3, 40])
def test_equal_candidates_come_in_order_of_their_ids(count: int) -> None:
    (entry,) = token_logprobs(logits([1.0] * 50), [0], [count])
    assert [c.token_id for c in entry.top] == list(range(count))


@pytest.mark.parametrize("count", [5, 32, 33, 400])
def test_candidates_are_sorted_and_the_input_is_untouched(count: int) -> None:
    row = np.random.default_rng(0).normal(size=(1, 200)).astype(np.float32)
    before = row.copy()
    (entry,) = token_logprobs(row, [5], [count])
    order = np.argsort(-row[0])[: min(count, 200)]
    assert [c.token_id for c in entry.top if c.rank][: len(order)] == order.tolist()
    assert (row == before).all()


def test_rows_do_not_depend_on_each_other_bitwise() -> None:
    rows = np.random.default_rng(1).normal(size=(7, 5000)).astype(np.float32)
    together = token_logprobs(rows, [3] * 7, [4] * 7)
    alone = [token_logprobs(rows[i : i + 1], [3], [4])[0] for i in range(7)]
    assert together == alone
