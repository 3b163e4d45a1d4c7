import random

import pytest
from toy_engine import (
    EOS,
    POISON,
    Outcome,
    ToyModel,
    ToyTokenizer,
    generated,
    run,
    step,
    submit,
    toy_parts,
)

from serve_shim.engine.request import Request
from serve_shim.engine.stats_sink import RequestStats, StepStats
from serve_shim.errors import GenerationError
from serve_shim.sampling.params import SamplingParams


class Recorder:
    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []
        self.firsts: list[bool] = []

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request_finished(self, stats: RequestStats) -> None:
        self.requests.append(stats)

    def on_tokens(self, first: bool, seconds: float) -> None:
        self.firsts.append(first)


def prompts(count: int, longest: int = 40) -> list[list[int]]:
    random_ = random.Random(count)
    return [
        [random_.randrange(2, 60) for _ in range(random_.randrange(1, longest))]
        for _ in range(count)
    ]


def test_lone_request_gets_the_models_own_tokens() -> None:
    model = ToyModel()
    assert generated(toy_parts(model), [5, 9, 14], max_tokens=20) == model.greedy([5, 9, 14], 20)


@pytest.mark.parametrize("budget", [8, 9, 13, 32, 4096])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_tokens_do_not_depend_on_chunks_blocks_or_batch_mates(budget: int, block_size: int) -> None:
    model = ToyModel()
    parts = toy_parts(model, max_num_batched_tokens=budget, block_size=block_size)
    requests = {submit(parts, prompt, max_tokens=12): prompt for prompt in prompts(14)}
    outcomes = run(parts.core)
    for request, prompt in requests.items():
        assert outcomes[request].tokens() == model.greedy(prompt, 12)
    assert max(model.num_tokens_of_steps) <= budget


def test_tokens_do_not_depend_on_preemption() -> None:
    model = ToyModel()
    parts = toy_parts(model, num_blocks=14, max_model_len=56, max_num_seqs=6)
    requests = {submit(parts, prompt, max_tokens=30): prompt for prompt in prompts(8, 20)}
    outcomes = run(parts.core)
    assert parts.core.stats().num_preemptions > 0
    for request, prompt in requests.items():
        assert outcomes[request].tokens() == model.greedy(prompt, 30)


@pytest.mark.parametrize("caching", [True, False])
def test_seeded_draws_do_not_depend_on_batch_mates_or_preemption(caching: bool) -> None:
    drawn = {"temperature": 1.3, "top_p": 0.9, "max_tokens": 25, "frequency_penalty": 0.4}
    work = list(enumerate(prompts(8, 20)))
    alone = {n: generated(toy_parts(), prompt, seed=n, **drawn) for n, prompt in work}
    parts = toy_parts(
        num_blocks=12, max_model_len=48, max_num_seqs=6, enable_prefix_caching=caching
    )
    requests = {n: submit(parts, prompt, seed=n, **drawn) for n, prompt in work}
    outcomes = run(parts.core)
    assert parts.core.stats().num_preemptions > 0
    assert {n: outcomes[request].tokens() for n, request in requests.items()} == alone


def test_logprobs_survive_preemption_and_slot_reuse() -> None:
    asked = {"logprobs": 3, "max_tokens": 25}
    work = prompts(8, 20)
    alone = [_deltas(toy_parts(), prompt, **asked) for prompt in work]
    parts = toy_parts(num_blocks=12, max_model_len=48, max_num_seqs=3)
    doomed = [submit(parts, prompt, **asked) for prompt in prompts(3, 10)]
    step(parts.core, {})
    for request in doomed:
        parts.core.abort(request)
    requests = [submit(parts, prompt, **asked) for prompt in work]
    outcomes = run(parts.core)
    assert parts.core.stats().num_preemptions > 0
    assert [[d.logprobs for d in outcomes[r].deltas] for r in requests] == alone


def test_shared_prefix_is_computed_once_and_changes_no_token() -> None:
    prefix = prompts(1)[0] + [7] * 30
    model = ToyModel()
    parts = toy_parts(model)
    generated(parts, prefix, max_tokens=1)
    before = model.num_computed
    request = submit(parts, [*prefix, 11, 12], max_tokens=5)
    outcome = run(parts.core)[request]
    assert outcome.tokens() == model.greedy([*prefix, 11, 12], 5)
    assert model.num_computed - before < len(prefix) // 2
    assert request.num_cached_tokens == len(prefix) // 4 * 4


def test_completions_of_one_prompt_differ_and_compute_it_once() -> None:
    prompt = [7, 8, 9] * 8
    model = ToyModel()
    parts = toy_parts(model, enable_prefix_caching=False)
    request = submit(parts, prompt, n=4, temperature=1.5, seed=3, max_tokens=10)
    outcome = run(parts.core)[request]
    tokens = [outcome.tokens(index) for index in range(4)]
    assert len({tuple(each) for each in tokens}) == 4
    # The last block is computed per completion, and each of ten tokens but the last.
    assert model.num_computed <= len(prompt) + 3 * 4 + 4 * 9
    again = submit(toy_parts_of := toy_parts(), prompt, n=4, temperature=1.5, seed=3, max_tokens=10)
    repeated = run(toy_parts_of.core)[again]
    assert [repeated.tokens(index) for index in range(4)] == tokens


def test_completions_end_on_their_own_and_the_request_with_the_last() -> None:
    parts = toy_parts()
    request = submit(parts, [5, 6], n=6, temperature=3.0, seed=1, ignore_eos=False, max_tokens=40)
    outcome = run(parts.core)[request]
    endings = {d.index: d.finish_reason for d in outcome.deltas if d.finish_reason}
    assert set(endings) == set(range(6))
    assert set(endings.values()) == {"stop", "length"}
    assert outcome.is_finished
    assert parts.core.stats().num_free_blocks == parts.config.num_blocks


def test_head_sees_only_the_rows_that_are_sampled() -> None:
    model = ToyModel()
    generated(toy_parts(model, max_num_batched_tokens=8), [7] * 30, max_tokens=5)
    assert model.num_scored_rows == 5


def test_minimum_keeps_end_of_sequence_away() -> None:
    model = ToyModel(script=[0, 0, EOS, EOS, EOS, EOS, EOS, EOS])
    parts = toy_parts(model)
    tokens = generated(parts, [5, 6], ignore_eos=False, min_tokens=3)
    assert EOS not in tokens[:3]
    assert tokens[3:] == [EOS]


def test_stop_string_across_tokens_ends_the_completion() -> None:
    text = [ord(letter) - ord("A") + 2 for letter in "HELLOUSERX"]
    parts = toy_parts(ToyModel(script=[0, *text]), ToyTokenizer())
    request = submit(parts, [5], stop=("USER",), max_tokens=20, logprobs=0)
    outcome = run(parts.core)[request]
    assert outcome.text() == "HELLO"
    assert outcome.deltas[-1].stop_reason == "USER"
    assert all(len(d.logprobs or ()) == len(d.token_ids) for d in outcome.deltas)
    assert outcome.tokens() == text[:9]


def test_context_is_filled_to_the_last_token() -> None:
    model = ToyModel()
    parts = toy_parts(model, max_model_len=16)
    assert generated(parts, [5] * 6, max_tokens=None) == model.greedy([5] * 6, 10)
    request = submit(parts, [5] * 16, max_tokens=0)
    outcome = run(parts.core)[request]
    assert (outcome.tokens(), outcome.deltas[-1].finish_reason) == ([], "length")


def test_abort_frees_everything_at_any_time() -> None:
    parts = toy_parts(max_num_seqs=2)
    requests = [submit(parts, [n + 2] * 20, max_tokens=50, n=2) for n in range(3)]
    outcomes: dict[Request, Outcome] = {}
    for _ in range(3):
        step(parts.core, outcomes)
    for request in requests:
        parts.core.abort(request)
        parts.core.abort(request)
        parts.core.check_accounts()
    assert not parts.core.has_work
    assert parts.core.stats().num_free_blocks == parts.config.num_blocks
    assert generated(parts, [5, 6], max_tokens=4) == ToyModel().greedy([5, 6], 4)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "min_p": 0.1, "top_p": 0.9},
        {"n": 3},
        {"logprobs": 2},
    ],
)
def test_request_with_nan_logits_fails_alone(params: dict[str, object]) -> None:
    model = ToyModel()
    parts = toy_parts(model)
    bad = submit(parts, [5, POISON, 6], **params)
    good = submit(parts, [5, 6, 7], max_tokens=9)
    outcomes = run(parts.core)
    (error,) = outcomes[bad].errors
    assert isinstance(error, GenerationError)
    assert "NaN" in str(error)
    assert outcomes[bad].deltas == []
    assert outcomes[good].tokens() == model.greedy([5, 6, 7], 9)
    assert parts.core.stats().num_free_blocks == parts.config.num_blocks


def test_prompt_with_nan_scores_fails_alone() -> None:
    parts = toy_parts()
    bad = submit(parts, [5, POISON, 6], prompt_logprobs=1, max_tokens=0)
    (error,) = run(parts.core)[bad].errors
    assert isinstance(error, GenerationError)
    assert "NaN" in str(error)


def test_tokenizer_that_fails_ends_its_request_only() -> None:
    class Broken(ToyTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            raise LookupError(token_id)

    parts = toy_parts(tokenizer=Broken())
    request = submit(parts, [5])
    (error,) = run(parts.core)[request].errors
    assert isinstance(error, GenerationError)
    assert "LookupError" in str(error)
    assert isinstance(error.__cause__, LookupError)


def test_failure_of_the_model_leaves_the_step() -> None:
    model = ToyModel()
    parts = toy_parts(model)
    submit(parts, [5])
    model.failure = MemoryError("no more")
    with pytest.raises(MemoryError, match="no more"):
        parts.core.step()


def test_sink_hears_of_steps_tokens_and_requests() -> None:
    parts, recorder = toy_parts(), Recorder()
    parts.core.observe(recorder)
    submit(parts, [5] * 10, max_tokens=3)
    run(parts.core)
    aborted = submit(parts, [5] * 10, max_tokens=3)
    step(parts.core, {})
    parts.core.abort(aborted)
    submit(parts, [POISON])
    run(parts.core)
    assert [r.finish_reason for r in recorder.requests] == ["length", "abort", "error"]
    assert recorder.requests[0].generation_tokens == 3
    assert recorder.firsts == [True, False, False, True]
    assert [s.prompt_tokens for s in recorder.steps[:3]] == [10, 0, 0]
    assert [s.generation_tokens for s in recorder.steps[:3]] == [1, 1, 1]
    assert recorder.steps[3].prefix_hits == 8
    assert recorder.steps[0].num_running == 1
    assert recorder.steps[0].kv_usage == pytest.approx(3 / 256)
    assert recorder.steps[2].kv_usage == 0.0


def test_steps_without_work_do_nothing() -> None:
    parts = toy_parts()
    assert parts.core.step() == []
    assert parts.core.stats().num_steps == 0


def test_forgotten_prefixes_are_computed_again() -> None:
    model = ToyModel()
    parts = toy_parts(model)
    generated(parts, [7] * 20, max_tokens=1)
    parts.core.forget_prefixes()
    assert parts.core.stats().num_cached_blocks == 0
    generated(parts, [7] * 20, max_tokens=1)
    assert model.num_computed == 40


def _deltas(parts: object, prompt: list[int], **params: object) -> list[object]:
    request = submit(parts, prompt, **params)  # pyright: ignore[reportArgumentType]
    return [d.logprobs for d in run(parts.core)[request].deltas]  # pyright: ignore


def test_parameters_of_one_request_do_not_reach_the_next_in_its_slot() -> None:
    parts = toy_parts(max_num_seqs=1)
    loud = SamplingParams(temperature=2.0, seed=1, logit_bias={9: 100.0}, max_tokens=3)
    parts.core.submit(parts.factory.make("loud", [5], loud))
    run(parts.core)
    assert generated(parts, [5, 6], max_tokens=8) == ToyModel().greedy([5, 6], 8)
