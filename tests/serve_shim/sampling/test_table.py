import numpy as np
import pytest

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
    assert used.gather([1]).edited is not None
    for table in (used, fresh):
        assign(table, 1, SamplingParams(temperature=0.0), [])
    slots = [1]
    for one, other in zip(used.gather(slots), fresh.gather(slots), strict=True):
        assert one == other
    assert used.gather(slots).num_logprobs is None
    assert used.rules == {}


def test_gathered_parameters_are_those_of_the_slots_in_their_order() -> None:
    table = SamplingTable(3)
    assign(table, 0, SamplingParams(temperature=0.0, top_p=0.5), [])
    assign(table, 1, BUSY, [])
    assign(table, 2, SamplingParams(temperature=2.0, top_k=-1), [])
    batch = table.gather([2, 1])
    assert batch.temperature.tolist() == pytest.approx([2.0, 0.7])
    assert (batch.top_k.tolist(), batch.top_p.tolist()) == ([0, 5], [1.0, 0.8])
    assert batch.min_p.tolist() == pytest.approx([0.0, 0.1])
    assert batch.num_logprobs == [NO_LOGPROBS, 3]
    assert batch.key.tolist() == [9, 9]
    assert batch.edited is not None
    assert (batch.edited.rows, batch.edited.slots) == ([1], [1])
    assert batch.edited.params.top_k.tolist() == [5]
    greedy = table.gather([0])
    assert greedy.temperature.tolist() == [0.0]
    assert (greedy.num_logprobs, greedy.edited) == (None, None)


def test_gathered_parameters_are_kept_until_a_slot_changes() -> None:
    table = SamplingTable(2)
    slots = [0, 1]
    first = table.gather(slots)
    assert table.gather([0, 1]) is first
    assign(table, 1, BUSY, [])
    assert table.gather(slots).temperature.tolist() == pytest.approx([0.0, 0.7])


def test_outputs_from_before_a_preemption_count_like_observed_ones() -> None:
    resumed, steady = SamplingTable(1), SamplingTable(1)
    assign(resumed, 0, BUSY, [4, 4])
    assign(steady, 0, BUSY, [])
    steady.observe(0, 4)
    steady.observe(0, 4)
    rows = [np.zeros(8, np.float32) for _ in range(2)]
    resumed.rules[0].apply(rows[0])
    steady.rules[0].apply(rows[1])
    assert rows[0].tolist() == rows[1].tolist()
    assert rows[0][4] == -2.0


def test_rules_end_with_the_minimum_that_they_watch_over() -> None:
    table = SamplingTable(2)
    params = SamplingParams(temperature=0.0, min_tokens=2)
    table.assign(0, params, key=9, stop_ids=(5,), prompt_ids=(1,), output_ids=())
    table.assign(1, params, key=9, stop_ids=(), prompt_ids=(1,), output_ids=())
    for is_edited in (True, True, False):
        edited = table.gather([1, 0]).edited
        assert (edited is not None and edited.slots == [0]) is is_edited
        table.observe(0, 3)
    assert table.rules == {}


def test_observed_tokens_reach_only_their_own_slot() -> None:
    table = SamplingTable(2)
    for slot in (0, 1):
        assign(table, slot, BUSY, [])
    table.observe(1, 6)
    row = np.zeros(8, np.float32)
    table.rules[0].apply(row)
    assert (row == 0.0).all()
