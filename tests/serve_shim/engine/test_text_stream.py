from toy_engine import ToyTokenizer

from serve_shim.engine.text_stream import TextStream
from serve_shim.sampling.params import SamplingParams

SMILE = (60, 61, 62)


def stream(**params: object) -> TextStream:
    return TextStream(ToyTokenizer(), SamplingParams(**params))  # pyright: ignore[reportArgumentType]


def push(text: TextStream, *token_ids: int) -> list[str]:
    return [text.push(token_id, may_match=True) for token_id in token_ids]


def test_character_spread_over_tokens_appears_once_and_whole() -> None:
    assert push(stream(), 2, *SMILE, 3) == ["A", "", "", "😀", "B"]


def test_character_that_never_ends_is_replaced_at_the_end() -> None:
    text = stream()
    assert push(text, 2, 60) == ["A", ""]
    assert text.flush() == "\ufffd"


def test_special_tokens_show_only_when_asked_for() -> None:
    assert push(stream(), 0, 2) == ["", "A"]
    assert push(stream(skip_special_tokens=False), 0, 2) == ["<0>", "A"]


def test_stop_string_may_end_inside_a_character_sequence() -> None:
    text = stream(stop="B😀")
    assert push(text, 2, 3, *SMILE) == ["A", "", "", "", ""]
    assert text.matched == "B😀"


def test_flush_gives_held_text_back() -> None:
    text = stream(stop="BCD")
    assert push(text, 2, 3, 4) == ["A", "", ""]
    assert text.flush() == "BC"
    assert text.matched is None


def test_stream_without_tokenizer_has_no_text() -> None:
    text = TextStream(None, SamplingParams())
    assert text.push(5, may_match=True) == text.flush() == ""
    assert text.matched is None
