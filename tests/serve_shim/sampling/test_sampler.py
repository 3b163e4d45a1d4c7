import numpy as np
import pytest
import torch

from serve_shim.sampling.params import SamplingParams
from serve_shim.sampling.sampler import Sampled, Sampler
from serve_shim.sampling.seeds import sequence_key
from serve_shim.sampling.table import SamplingTable

VOCAB = 1000  # Not a multiple of the blocks that rows are read in.


def sample(
    logits: torch.Tensor,
    params: list[SamplingParams],
    *,
    positions: list[int] | None = None,
    outputs: list[list[int]] | None = None,
) -> Sampled:
    table = SamplingTable(len(params))
    for slot, each in enumerate(params):
        table.assign(
            slot,
            each,
            key=sequence_key(each.seed or 0, 0),
            stop_ids=(1,),
            prompt_ids=(),
            output_ids=outputs[slot] if outputs else (),
        )
    sampler = Sampler(table)
    where = torch.tensor(positions or [0] * len(params))
    return sampler.sample(logits, list(range(len(params))), where)


def random_logits(rows: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 3


def draws(logits: torch.Tensor, params: SamplingParams, count: int = 400) -> set[int]:
    """The distinct tokens over many positions of one seed."""
    result = sample(logits.expand(count, -1), [params] * count, positions=list(range(count)))
    assert min(result.token_ids) >= 0
    return set(result.token_ids)


GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_maximum(dtype: torch.dtype) -> None:
    logits = random_logits(4).to(dtype)
    logits[0, 17] = logits[0, 400] = 100.0
    expected = logits.float().numpy().argmax(-1)
    assert expected[0] == 17
    assert sample(logits, [GREEDY] * 4).token_ids == expected.tolist()


def test_greedy_rows_are_the_same_beside_random_ones() -> None:
    logits = random_logits(3)
    mixed = sample(logits, [GREEDY, SamplingParams(seed=1), GREEDY])
    plain = sample(logits, [GREEDY] * 3)
    assert mixed.token_ids[::2] == plain.token_ids[::2]


def test_input_logits_are_not_modified() -> None:
    logits = random_logits(2)
    before = logits.clone()
    sample(logits, [SamplingParams(logit_bias={3: 5.0}, temperature=0.3), GREEDY])
    assert torch.equal(logits, before)


def test_row_is_bitwise_independent_of_its_batch_mates() -> None:
    logits = random_logits(6)
    params = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_p=0.7, logprobs=3),
        SamplingParams(temperature=0.0, presence_penalty=1.0),
        SamplingParams(seed=3, top_k=20, min_p=0.01, temperature=1.7),
        GREEDY,
        SamplingParams(seed=4, logprobs=0, frequency_penalty=0.3),
    ]
    together = sample(logits, params, positions=[9, 8, 7, 6, 5, 4])
    for row, each in enumerate(params):
        alone = sample(logits[row : row + 1], [each], positions=[9 - row])
        assert alone.token_ids[0] == together.token_ids[row]
        assert (alone.logprobs or [None])[0] == (together.logprobs or [])[row]


def test_draws_follow_the_quantiles_of_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.0, 0.6, 0.3]]))
    count = 20_000
    result = sample(
        logits.expand(count, -1), [SamplingParams(seed=5)] * count, positions=list(range(count))
    )
    shares = np.bincount(result.token_ids, minlength=4) / count
    # Fixed seed: five standard deviations, and never a token without weight.
    assert shares == pytest.approx([0.1, 0.0, 0.6, 0.3], abs=5 * np.sqrt(0.25 / count))
    assert shares[1] == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(seed=5, temperature=1.7), 300),
        (SamplingParams(seed=6, top_p=0.8), None),
        (SamplingParams(seed=7, top_p=0.1, temperature=2.0), None),
        (SamplingParams(seed=8, top_k=7), 7),
        (SamplingParams(seed=9, top_k=50, top_p=0.7, min_p=0.02), None),
    ],
)
def test_draws_have_the_distribution_that_the_parameters_describe(
    dtype: torch.dtype, params: SamplingParams, kept: int | None
) -> None:
    logits = random_logits(1, 300).to(dtype)
    expected = probabilities(logits[0].double(), params)
    if kept is not None:
        assert int((expected > 0).sum()) >= kept
    count = 20_000
    drawn = sample(logits.expand(count, -1), [params] * count, positions=list(range(count)))
    shares = np.bincount(drawn.token_ids, minlength=300) / count
    # The seeds are fixed; five standard deviations, a few draws more for the rarest, and never a
    # token that was cut.
    deviation = np.sqrt(expected * (1 - expected) / count)
    assert (np.abs(shares - expected) <= 5 * deviation + 4 / count).all()
    assert (shares[expected == 0.0] == 0.0).all()


def probabilities(logits_V: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """By the definition: each cut of what the one before it left, ties kept."""
    weights = torch.softmax(logits_V / params.temperature, 0)
    weights[weights < params.min_p * weights.max()] = 0.0
    if params.top_k > 0:
        weights[weights < weights.sort(descending=True).values[params.top_k - 1]] = 0.0
    weights /= weights.sum()
    ordered = weights.sort(descending=True).values
    last = int(torch.searchsorted(ordered.cumsum(0), params.top_p)) if params.top_p < 1.0 else -1
    weights[weights < ordered[last]] = 0.0
    return (weights / weights.sum()).numpy()


def test_temperature_sharpens_and_flattens() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert draws(logits, SamplingParams(seed=1, temperature=0.01)) == {3}
    assert draws(logits, SamplingParams(seed=1, temperature=50.0)) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(seed=1, top_k=1), {2}),
        (SamplingParams(seed=1, top_k=2), {1, 2}),
        (SamplingParams(seed=1, top_p=0.5), {2}),
        (SamplingParams(seed=1, top_p=0.8), {1, 2}),
        (SamplingParams(seed=1, min_p=0.4), {1, 2}),
        (SamplingParams(seed=1, logit_bias={0: 100.0}), {0}),
        (SamplingParams(seed=1, logit_bias={2: -100.0, 1: -100.0}), {0, 3}),
        (SamplingParams(seed=1, min_tokens=3), {0, 2, 3}),
        # min_p looks at the probabilities after the temperature: at 4 the ratio is 0.84.
        (SamplingParams(seed=1, min_p=0.4, temperature=4.0), {0, 1, 2, 3}),
    ],
)
def test_only_allowed_tokens_are_drawn_and_all_of_them(
    params: SamplingParams, allowed: set[int]
) -> None:
    logits = torch.log(torch.tensor([[0.1, 0.3, 0.55, 0.05]]))
    assert draws(logits, params) == allowed


def test_penalties_change_the_greedy_choice() -> None:
    logits = torch.tensor([[1.0, 0.0, 3.0, 2.5]])
    for params in (
        SamplingParams(temperature=0.0, frequency_penalty=0.6),
        SamplingParams(temperature=0.0, presence_penalty=0.6),
        SamplingParams(temperature=0.0, repetition_penalty=1.3),
    ):
        assert sample(logits, [params], outputs=[[2]]).token_ids == [3]
        assert sample(logits, [params], outputs=[[]]).token_ids == [2]


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = torch.tensor([[1.0, 0.0, 3.0, 2.5]])
    params = SamplingParams(temperature=0.0, logit_bias={0: 50.0}, logprobs=1)
    result = sample(logits, [params])
    entry = (result.logprobs or [])[0]
    assert entry is not None
    assert result.token_ids == [entry.token_id] == [0]
    assert entry.logprob == pytest.approx(float(torch.log_softmax(logits[0], 0)[0]))
    assert [c.token_id for c in entry.top] == [2, 0]


def test_rows_without_logprobs_have_none_beside_those_with() -> None:
    result = sample(random_logits(3), [GREEDY, SamplingParams(temperature=0.0, logprobs=0), GREEDY])
    assert result.logprobs is not None
    assert [entry is None for entry in result.logprobs] == [True, False, True]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(seed=1),
        SamplingParams(logprobs=1),
        SamplingParams(seed=1, top_p=0.9),
        SamplingParams(seed=1, top_k=5),
        SamplingParams(seed=1, min_p=0.1),
        SamplingParams(seed=1, min_p=0.1, top_p=0.9),
    ],
)
def test_unusable_row_fails_alone(bad: float, params: SamplingParams) -> None:
    logits = random_logits(3)
    healthy = sample(logits, [params] * 3)
    if bad == -torch.inf:
        logits[1] = bad
    else:
        logits[1, 500] = bad
    result = sample(logits, [params] * 3)
    assert result.token_ids[1] < 0
    assert result.token_ids[::2] == healthy.token_ids[::2]


def test_one_row_of_minus_infinities_but_one_is_certain() -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 999] = 2.0
    assert draws(logits, SamplingParams(seed=1, top_p=0.9, top_k=7), 20) == {999}
