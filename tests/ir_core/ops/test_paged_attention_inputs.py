import torch

from ir_core.ops.paged_attention_inputs import paged_attention_inputs


def test_inputs_give_each_key_a_row_of_its_own() -> None:
    _, _, _, _, cache, table, lengths, starts, slots, _, _ = paged_attention_inputs(
        24, torch.float32, context=130, shortest=3
    )
    rows = [
        int(blocks[at // 16]) * 16 + at % 16
        for blocks, length in zip(table, lengths.tolist(), strict=True)
        for at in range(length)
    ]
    assert len(set(rows)) == len(rows)
    last = [rows[end - 1] for end in lengths.cumsum(0).tolist()]
    assert slots.tolist() == last
    assert starts.tolist() == list(range(25))
    filled = (~cache.isnan()).all(dim=(1, 2, 4)).sum()
    assert filled == len(rows)


def test_inputs_split_what_is_left_over_into_a_shorter_request() -> None:
    starts = paged_attention_inputs(7, torch.float32, query_len=3)[7]
    assert starts.tolist() == [0, 3, 6, 7]


def test_inputs_are_the_same_for_the_same_seed() -> None:
    first, second = (paged_attention_inputs(3, torch.float32, seed=5) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[4].nan_to_num(7), second[4].nan_to_num(7))


def test_inputs_of_no_tokens_have_no_requests() -> None:
    inputs = paged_attention_inputs(0, torch.float32)
    assert [len(inputs[at]) for at in (0, 5, 6, 7, 8)] == [0, 0, 0, 1, 0]
