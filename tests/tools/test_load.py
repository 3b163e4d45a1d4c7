"""The load: prompts that share nothing, levels that use each prompt once."""

import pytest
from pydantic import ValidationError

from tools.bench.load import Load, make_prompt


def test_prompts_differ_from_their_first_word() -> None:
    first_words = [make_prompt(index).split()[0] for index in range(200)]
    assert len(set(first_words)) == 200


def test_prompts_are_of_mixed_lengths() -> None:
    lengths = [len(make_prompt(index).split()) - 5 for index in range(9)]
    assert lengths == [8, 24, 64, 128, 16, 256, 48, 96, 8]


def test_levels_use_no_prompt_twice() -> None:
    levels = dict(Load(streams=(1, 4, 16), warmup=2).levels())
    assert levels == {1: range(2, 10), 4: range(10, 22), 16: range(22, 70)}


@pytest.mark.parametrize("wrong", [{"streams": ()}, {"streams": (0,)}, {"max_tokens": 0}])
def test_load_refuses_what_asks_nothing(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Load.model_validate(wrong)
