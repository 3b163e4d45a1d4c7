from toy_engine import toy_parts

from serve_shim.engine.request import NO_SLOT, Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.sampling.params import SamplingParams


def sequence(prompt: list[int], outputs: list[int], blocks: list[int]) -> Sequence:
    (made,) = toy_parts().factory.make("r", prompt, SamplingParams()).sequences
    made.output_ids, made.blocks = outputs, blocks
    made.num_tokens = len(prompt) + len(outputs)
    return made


def test_occupying_copies_prompt_outputs_and_blocks() -> None:
    table, one = SlotTable(2, 16, 4), sequence([5, 6], [7], [9, 3])
    table.occupy(one)
    assert table.token_ids[one.slot, :3].tolist() == [5, 6, 7]
    assert table.blocks[one.slot, :2].tolist() == [9, 3]
    assert table.tokens_of(one).tolist() == one.token_ids.tolist() == [5, 6, 7]


def test_slots_run_out_and_come_back() -> None:
    table, one, two = SlotTable(2, 16, 4), sequence([5], [], []), sequence([6], [], [])
    table.occupy(one)
    table.occupy(two)
    assert one.slot != two.slot
    assert not table.has_free_slot
    table.vacate(one)
    assert (one.slot, table.num_free) == (NO_SLOT, 1)
    assert table.tokens_of(one).tolist() == [5]


def test_appended_tokens_and_blocks_land_in_their_own_rows() -> None:
    table, one, two = SlotTable(2, 16, 4), sequence([5], [], [1]), sequence([6, 6], [], [2])
    table.occupy(one)
    table.occupy(two)
    table.append_token(two, 8)
    table.append_token(one, 7)
    table.append_block(two, 3)
    assert table.token_ids[one.slot, :2].tolist() == [5, 7]
    assert table.token_ids[two.slot, :3].tolist() == [6, 6, 8]
    assert (two.blocks, table.blocks[two.slot, :2].tolist()) == ([2, 3], [2, 3])


def test_token_after_a_full_context_has_a_place() -> None:
    table, one = SlotTable(1, 4, 1), sequence([5, 6, 7, 8], [], [0])
    table.occupy(one)
    table.append_token(one, 9)
    assert table.token_ids[one.slot].tolist() == [5, 6, 7, 8, 9]
    assert table.tokens_of(one).tolist() == [5, 6, 7, 8]
