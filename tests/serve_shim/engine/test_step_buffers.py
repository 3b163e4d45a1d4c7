import torch
from toy_engine import toy_parts

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.request import Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_buffers import StepBuffers
from serve_shim.engine.step_memory import StepInputs
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
    plan.add(running(table, [20, 21], 0, [1]), 2)
    step = buffers.fill(plan, table)
    reduced = step.take([1])
    assert reduced.input_ids is step.input_ids
    assert (reduced.last_rows.tolist(), reduced.ends.tolist()) == ([2], [2])


def as_lists(step: StepInputs, widths: list[int]) -> list[object]:
    """Everything that a model or a sampler reads of a step."""
    blocks = step.attention.block_table.tolist()
    return [
        *(each.tolist() for each in (*step[:2], *step.attention[1:], step.last_rows, step.ends)),
        [row[:width] for row, width in zip(blocks, widths, strict=True)],
    ]


def test_steps_are_the_same_whatever_came_before() -> None:
    used, table = make()
    one = running(table, [10, 11, 12, 13, 14], 4, [7, 2])
    two = running(table, [20, 21, 22, 23], 2, [5])
    moved = running(table, [30, 31, 32, 33, 34, 35], 4, [9, 3])

    def check(*parts: tuple[Sequence, int]) -> None:
        plan = StepPlan()
        for sequence, length in parts:
            plan.add(sequence, length)
        widths = [len(sequence.blocks) for sequence, _ in parts]
        fresh = StepBuffers(CONFIG).fill(plan, table)
        assert as_lists(used.fill(plan, table), widths) == as_lists(fresh, widths)

    check((one, 1), (two, 1))
    check((two, 1), (one, 1))
    check((one, 1), (moved, 2), (two, 1))
    check((one, 1), (two, 1), (moved, 1))
    table.append_block(two, 8)  # its list grows in place
    check((one, 1), (two, 1))
    moved.blocks = [4, 6]  # another list of the same length, as after a pre-emption
    table.blocks[moved.slot, :2] = moved.blocks
    check((one, 1), (two, 1), (moved, 1))
    check((moved, 1))


def test_step_of_one_token_each_may_be_part_of_a_prompt() -> None:
    buffers, table = make()
    plan = StepPlan()
    plan.add(running(table, [10, 11, 12, 13], 1, [6]), 1)
    step = buffers.fill(plan, table)
    assert (step.input_ids.tolist(), step.positions.tolist()) == ([11], [1])
    assert step.ends.tolist() == step.attention.seq_lens.tolist() == [2]


def test_cells_beyond_a_step_are_padding_whatever_came_before() -> None:
    buffers, table = make()
    one = running(table, [10, 11, 12, 13, 14], 4, [7, 2])
    two = running(table, [20, 21, 22, 23], 2, [5])
    three = running(table, [30, 31, 32, 33, 34, 35], 2, [9, 3])

    def check(*parts: tuple[Sequence, int]) -> None:
        plan = StepPlan()
        for sequence, length in parts:
            plan.add(sequence, length)
        rows, tokens = len(plan.sequences), plan.num_tokens
        buffers.fill(plan, table)
        whole = buffers.whole
        assert not whole.input_ids[tokens:].any()
        assert not whole.positions[tokens:].any()
        assert (whole.attention.slot_mapping[tokens:] == -1).all()
        assert not whole.attention.seq_lens[rows:].any()
        assert (whole.attention.query_start_loc[rows:] == tokens).all()

    check((one, 1), (two, 2), (three, 4))
    check((two, 1))
    check((one, 1), (two, 1), (three, 1))
    check((one, 1), (two, 1))
    check((three, 4))
    check((one, 1), (three, 4))
    check((one, 1), (two, 1))
    check((one, 1))


def test_memory_before_the_first_step_is_padding() -> None:
    whole = make()[0].whole
    for each in (whole.input_ids, whole.positions, *whole.attention[:3]):
        assert not each.any()
    assert (whole.attention.slot_mapping == -1).all()


def test_steps_are_the_first_part_of_the_static_memory() -> None:
    buffers, table = make()
    plan = StepPlan()
    plan.add(running(table, [10, 11, 12], 0, [0]), 2)
    step, whole = buffers.fill(plan, table), buffers.whole
    for one, other in zip(step[:2] + step.attention, whole[:2] + whole.attention, strict=True):
        assert one.data_ptr() == other.data_ptr()
