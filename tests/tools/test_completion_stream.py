"""Answers as they come over the wire, cut anywhere, good and malformed."""

import pytest

from tools.bench.completion_stream import Completion, Exchange, read_completion

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENTS = [
    b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n',
    b": ping\n\n",
    b'data: {"choices": [{"text": "b", "finish_reason": null}]}\r\n\r\n',
    b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n',
    b'data: {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 9}}\n\n',
    b"data: [DONE]\n\n",
]


def _chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


def _read(*pieces: bytes) -> Completion:
    return read_completion(Exchange(0.0, [(float(at), piece) for at, piece in enumerate(pieces)]))


@pytest.mark.parametrize("width", [1, 2, 3, 7, 64, 4096])
def test_answer_reads_the_same_however_it_is_cut(width: int) -> None:
    wire = _HEAD + _chunked(*_EVENTS)
    completion = _read(*(wire[at : at + width] for at in range(0, len(wire), width)))
    assert completion.error is None
    assert completion.text == "ab"
    assert (completion.num_tokens, completion.num_prompt_tokens) == (3, 9)


def test_tokens_have_the_time_of_the_read_that_ended_their_line() -> None:
    completion = _read(_HEAD, _chunked(_EVENTS[0])[:-5], _chunked(*_EVENTS[2:]))
    assert completion.token_times == (1.0, 2.0)


def test_answer_without_chunks_or_usage_is_read() -> None:
    completion = _read(b"HTTP/1.0 200 OK\r\n\r\n" + _EVENTS[0] + _EVENTS[2])
    assert (completion.num_tokens, completion.text, completion.error) == (2, "ab", None)


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ((b"HTTP/1.1 400 Bad\r\n\r\nno such model",), "400 Bad: b'no such model'"),
        ((b"HTTP/1.1 200 OK\r\n",), "before the end of the head"),
        ((_HEAD + _chunked(*_EVENTS)[:-5],), "in the middle of the answer"),
        ((_HEAD + _chunked(b'data: {"error": {"message": "died"}}\n\n'),), "died"),
        ((_HEAD + _chunked(b"data: {]\n\n"),), "malformed"),
        ((_HEAD + _chunked(b"data: [1]\n\n"),), "malformed"),
        ((_HEAD + _chunked(_EVENTS[-1]),), "no token"),
        ((b"nonsense\r\n\r\n",), "malformed"),
    ],
)
def test_bad_answer_is_an_error_that_says_so(pieces: tuple[bytes, ...], said: str) -> None:
    completion = _read(*pieces)
    assert completion.error is not None
    assert said in completion.error
