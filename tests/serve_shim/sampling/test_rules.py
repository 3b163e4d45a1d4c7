import numpy as np

from serve_shim.sampling.params import SamplingParams
from serve_shim.sampling.rules import LogitRules


def apply(params: SamplingParams, prompt: list[int], outputs: list[int]) -> list[float]:
    row = np.array([2.0, -2.0, 1.0, 0.5], np.float32)
    rules = LogitRules(params, stop_ids=(3,))
    rules.see_prompt(prompt)
    rules.see_output(outputs)
    rules.apply(row)
    return [float(value) for value in row]


def test_bias_is_added_to_its_ids() -> None:
    assert apply(SamplingParams(logit_bias={1: 5.0, 3: -100.0}), [], []) == [2.0, 3.0, 1.0, -99.5]


def test_frequency_penalty_counts_outputs_and_not_the_prompt() -> None:
    params = SamplingParams(frequency_penalty=0.5)
    assert apply(params, [0, 0, 2], [1, 1, 3]) == [2.0, -3.0, 1.0, 0.0]


def test_presence_penalty_is_the_same_for_one_and_many_occurrences() -> None:
    params = SamplingParams(presence_penalty=1.0)
    assert apply(params, [0], [1, 1, 1, 3]) == [2.0, -3.0, 1.0, -0.5]


def test_repetition_penalty_shrinks_positive_and_grows_negative_logits_of_all_seen() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    assert apply(params, [0, 1], [3, 3]) == [1.0, -4.0, 1.0, 0.25]


def test_penalties_apply_in_order_repetition_then_frequency_then_presence() -> None:
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5)
    assert apply(params, [], [0, 0])[0] == 2.0 / 2.0 - 2 * 0.25 - 0.5


def test_stop_ids_are_masked_until_the_minimum_is_reached() -> None:
    params = SamplingParams(min_tokens=2)
    assert apply(params, [], [0])[3] == -np.inf
    assert apply(params, [], [0, 0])[3] == 0.5


def test_bias_cannot_lift_a_masked_stop_id() -> None:
    params = SamplingParams(min_tokens=1, logit_bias={3: 100.0})
    assert apply(params, [], [])[3] == -np.inf


def test_penalties_hold_for_more_tokens_than_the_first_arrays_have_room_for() -> None:
    rules = LogitRules(SamplingParams(frequency_penalty=1.0), ())
    rules.see_output([*range(200), 7])
    row = np.zeros(256, np.float32)
    rules.apply(row)
    assert row[7] == -2.0
    assert (np.delete(row[:200], 7) == -1.0).all()
    assert (row[200:] == 0.0).all()


def test_rules_are_over_once_nothing_more_is_edited() -> None:
    assert LogitRules(SamplingParams(temperature=0.5, top_k=3), (3,)).are_over
    for params in (
        SamplingParams(logit_bias={1: 1.0}),
        SamplingParams(presence_penalty=0.1),
        SamplingParams(repetition_penalty=1.1),
    ):
        rules = LogitRules(params, (3,))
        rules.see_output((1, 2))
        assert not rules.are_over
    shortest = SamplingParams(min_tokens=2)
    assert LogitRules(shortest, ()).are_over
    rules = LogitRules(shortest, (3,))
    for is_over in (False, False, True):
        assert rules.are_over is is_over
        rules.see_output((1,))
