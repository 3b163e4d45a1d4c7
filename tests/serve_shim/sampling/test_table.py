import numpy as np

from serve_shim.sampling.params import SamplingParams
from serve_shim.sampling.table import NO_LOGPROBS, SamplingTable

BUSY = SamplingParams(
    temperature=0.7, top_k=5, top_p=0.8, min_p=0.1, frequency_penalty=1.0, logprobs=3
)


def assign(table: SamplingTable, slot: int, params: SamplingParams, outputs: list[int]) -> None:
    table.assign(slot, params, key=9, stop_ids=(), prompt_ids=(1,), output_ids=outputs)


def test_slot_keeps_nothing_of_its_previous_owner() -> None:
    used, fresh = SamplingTable(2), SamplingTable(2)
    assign(used, 1, BUSY, [2, 3])
    for table in (used, fresh):
        assign(table, 1, SamplingParams(temperature=0.0), [])
    for name in ("is_greedy", "is_plain", "is_truncated", "temperature", "top_p", "top_k", "min_p"):
        assert getattr(used, name)[1] == getattr(fresh, name)[1]
    assert used.num_logprobs[1] == NO_LOGPROBS
    assert used.rules == {}


def test_plain_slots_are_greedy_without_extras() -> None:
    table = SamplingTable(3)
    assign(table, 0, SamplingParams(temperature=0.0, top_p=0.5), [])
    assign(table, 1, SamplingParams(temperature=0.0, logprobs=0), [])
    assign(table, 2, SamplingParams(temperature=0.0, min_tokens=1), [])
    assert table.is_plain.tolist() == [True, False, False]
    assert table.are_plain(np.array([0]))
    assert not table.are_plain(np.array([0, 2]))


def test_outputs_from_before_a_preemption_count_like_observed_ones() -> None:
    resumed, steady = SamplingTable(1), SamplingTable(1)
    assign(resumed, 0, BUSY, [4, 4])
    assign(steady, 0, BUSY, [])
    steady.observe([0], [4])
    steady.observe([0], [4])
    rows = [np.zeros(8, np.float32) for _ in range(2)]
    resumed.rules[0].apply(rows[0])
    steady.rules[0].apply(rows[1])
    assert rows[0].tolist() == rows[1].tolist()
    assert rows[0][4] == -2.0


def test_observed_tokens_reach_only_their_own_slot() -> None:
    table = SamplingTable(2)
    for slot in (0, 1):
        assign(table, slot, BUSY, [])
    table.observe([1], [6])
    row = np.zeros(8, np.float32)
    table.rules[0].apply(row)
    assert (row == 0.0).all()
