import torch
from toy_engine import toy_parts

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.request import Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_buffers import StepBuffers
from serve_shim.engine.step_plan import StepPlan
from serve_shim.sampling.params import SamplingParams

CONFIG = EngineConfig(
    max_model_len=12, num_blocks=20, block_size=4, max_num_seqs=3, max_num_batched_tokens=10
)


def running(table: SlotTable, tokens: list[int], num_computed: int, blocks: list[int]) -> Sequence:
    (sequence,) = toy_parts().factory.make("r", tokens, SamplingParams(max_tokens=1)).sequences
    sequence.num_computed, sequence.blocks = num_computed, blocks
    table.occupy(sequence)
    return sequence


def make() -> tuple[StepBuffers, SlotTable]:
    return StepBuffers(CONFIG), SlotTable(3, 12, CONFIG.max_blocks_per_sequence)


def test_mixed_step_lists_tokens_positions_and_places() -> None:
    buffers, table = make()
    decode = running(table, [10, 11, 12, 13, 14], 4, [7, 2])
    prefill = running(table, [20, 21, 22, 23, 24, 25], 2, [5, 9])
    plan = StepPlan()
    plan.add(decode, 1)
    plan.add(prefill, 3)
    step = buffers.fill(plan, table)
    assert step.input_ids.tolist() == [14, 22, 23, 24]
    assert step.positions.tolist() == [4, 2, 3, 4]
    assert step.attention.slot_mapping.tolist() == [2 * 4 + 0, 5 * 4 + 2, 5 * 4 + 3, 9 * 4 + 0]
    assert step.attention.seq_lens.tolist() == step.ends.tolist() == [5, 5]
    assert step.attention.query_start_loc.tolist() == [0, 1, 4]
    assert [row[:2] for row in step.attention.block_table.tolist()] == [[7, 2], [5, 9]]
    assert step.last_rows.tolist() == [0, 3]
    assert step.slots.tolist() == [decode.slot, prefill.slot]


def test_decode_step_has_one_row_per_sequence() -> None:
    buffers, table = make()
    plan = StepPlan()
    for first in (10, 20, 30):
        plan.add(running(table, [first, first + 1], 1, [first % 7]), 1)
    step = buffers.fill(plan, table)
    assert step.input_ids.tolist() == [11, 21, 31]
    assert step.positions.tolist() == [1, 1, 1]
    assert step.attention.slot_mapping.tolist() == [13, 25, 9]
    assert step.last_rows.tolist() == [0, 1, 2]


def test_dtypes_are_those_of_the_attention_contract() -> None:
    buffers, table = make()
    plan = StepPlan()
    plan.add(running(table, [10, 11], 0, [0]), 2)
    step = buffers.fill(plan, table)
    assert [t.dtype for t in step.attention] == [torch.int32] * 3 + [torch.int64]
    assert step.input_ids.dtype is step.positions.dtype is torch.int64


def test_steps_reuse_the_same_memory() -> None:
    buffers, table = make()
    plan = StepPlan()
    plan.add(running(table, [10, 11, 12], 0, [0]), 2)
    first = buffers.fill(plan, table)
    second = buffers.fill(plan, table)
    for one, two in zip(
        (*first[:2], *first.attention), (*second[:2], *second.attention), strict=True
    ):
        assert one.data_ptr() == two.data_ptr()


def test_reduced_step_keeps_the_tensors_and_picks_the_rows() -> None:
    buffers, table = make()
    plan = StepPlan()
    plan.add(running(table, [10, 11], 1, [0]), 1)
    last = running(table, [20, 21], 0, [1])
    plan.add(last, 2)
    step = buffers.fill(plan, table)
    reduced = step.take(torch.tensor([1]).numpy())
    assert reduced.input_ids is step.input_ids
    assert (reduced.last_rows.tolist(), reduced.slots.tolist()) == ([2], [last.slot])
