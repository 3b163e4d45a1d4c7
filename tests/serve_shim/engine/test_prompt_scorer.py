import pytest
import torch
from toy_engine import Outcome, ToyModel, run, submit, toy_parts

from serve_shim.engine.output import TokenLogprobs

PROMPT = [5, 9, 14, 33, 2, 8, 41, 7, 7, 20, 3]


def score(prompt: list[int] = PROMPT, *, budget: int = 32) -> tuple[ToyModel, Outcome]:
    model = ToyModel()
    parts = toy_parts(model, max_num_batched_tokens=budget)
    request = submit(parts, prompt, prompt_logprobs=2, max_tokens=1)
    return model, run(parts.core)[request]


def entries(outcome: Outcome) -> list[TokenLogprobs | None]:
    assert isinstance(outcome.prompt_logprobs, tuple)
    return list(outcome.prompt_logprobs)


def test_each_prompt_token_is_scored_after_those_before_it() -> None:
    model, outcome = score()
    found = entries(outcome)
    assert found[0] is None
    assert len(found) == len(PROMPT)
    for place, entry in enumerate(found[1:], start=1):
        assert entry is not None
        expected = torch.log_softmax(model.raw_logits(PROMPT[:place]), 0)
        assert entry.token_id == PROMPT[place]
        assert entry.logprob == pytest.approx(float(expected[PROMPT[place]]))
        assert entry.top[0].token_id == int(expected.argmax())


@pytest.mark.parametrize("budget", [8, 9, 64])
def test_scores_do_not_depend_on_how_the_prompt_is_cut(budget: int) -> None:
    _, outcome = score(budget=budget)
    assert entries(outcome) == entries(score()[1])


def test_prompt_longer_than_one_batch_of_rows_is_scored_whole() -> None:
    prompt = [2 + n % 60 for n in range(100)]
    _, outcome = score(prompt, budget=100)
    assert [e.token_id for e in entries(outcome) if e] == prompt[1:]


def test_prompt_of_one_token_has_no_scores() -> None:
    assert entries(score([5])[1]) == [None]


def test_only_prompt_rows_and_the_sampled_row_reach_the_head() -> None:
    model, _ = score()
    assert model.num_scored_rows == len(PROMPT)


def test_cached_prefix_is_computed_again_for_its_scores() -> None:
    parts = toy_parts()

    submit(parts, PROMPT, max_tokens=1)
    run(parts.core)
    second = submit(parts, PROMPT, prompt_logprobs=2, max_tokens=1)
    outcome = run(parts.core)[second]
    assert entries(outcome) == entries(score()[1])


def test_completions_share_the_scores_of_the_first() -> None:
    parts = toy_parts()
    request = submit(parts, PROMPT, prompt_logprobs=0, n=3, max_tokens=2)
    outcome = run(parts.core)[request]
    assert len(entries(outcome)) == len(PROMPT)
    assert all(len(outcome.tokens(index)) == 2 for index in range(3))


def test_prompt_can_be_scored_without_generating() -> None:
    parts = toy_parts()
    request = submit(parts, PROMPT, prompt_logprobs=2, max_tokens=0)
    outcome = run(parts.core)[request]
    assert entries(outcome) == entries(score()[1])
    assert outcome.tokens() == []
    assert outcome.is_finished
