"""Completions as a client sees them: bodies, prompts, logprobs, echo."""

from typing import Any

import pytest

from .client import Client, Reply
from .fake_engine import BOS, FakeEngine, completion_text

PROMPT = [BOS, *b"hi"]
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def complete(client: Client, **fields: Any) -> Reply:
    return client.post("/v1/completions", {"prompt": "hi", "max_tokens": 5, **fields})


def test_completion_has_the_openai_shape(client: Client, engine: FakeEngine) -> None:
    reply = complete(client, model="fake")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == "fake"
    assert body["choices"] == [
        {
            "index": 0,
            "text": completion_text(PROMPT, 0, 5),
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["ab"], [[BOS, 97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
def test_each_shape_of_prompt_becomes_its_own_choices(
    client: Client, engine: FakeEngine, prompt: object, ids: list[list[int]]
) -> None:
    body = complete(client, prompt=prompt, n=2).json()
    assert sorted(list(seen) for _, seen, _ in engine.seen) == sorted(ids)
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == [completion_text(one, index, 5) for one in ids for index in range(2)]
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(ids)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert body["usage"]["completion_tokens"] == 10 * len(ids)


def test_add_special_tokens_false_adds_no_bos(client: Client, engine: FakeEngine) -> None:
    complete(client, add_special_tokens=False)
    assert list(engine.seen[0][1]) == list(b"hi")


def test_null_means_the_default(client: Client, engine: FakeEngine) -> None:
    nulls = dict.fromkeys(
        ("stop", "temperature", "top_p", "n", "seed", "logprobs", "logit_bias", "stream", "echo")
    )
    assert complete(client, **nulls, max_tokens=None).status == 200
    params = engine.seen[0][2]
    assert (params.max_tokens, params.n, params.temperature, params.stop) == (16, 1, 1.0, ())


def test_fields_reach_the_engine(client: Client, engine: FakeEngine) -> None:
    fields = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "repetition_penalty": 1.5,
        "seed": 7,
        "stop_token_ids": [5],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "min_tokens": 2,
        "skip_special_tokens": False,
    }
    assert complete(client, **fields, stop=["a", "b"], logit_bias={"65": -3.5}).status == 200
    params = engine.seen[0][2]
    for name, value in fields.items():
        expected = tuple(value) if isinstance(value, list) else value
        assert getattr(params, name) == expected
    assert params.stop == ("a", "b")
    assert params.logit_bias == {65: -3.5}


def test_unknown_fields_are_ignored(client: Client) -> None:
    assert complete(client, user="someone", a_new_field={"deep": [1]}).status == 200


def test_logprobs_are_four_lists_with_the_chosen_token_in_front(client: Client) -> None:
    logprobs = complete(client, logprobs=3).json()["choices"][0]["logprobs"]
    text = completion_text(PROMPT, 0, 5)
    assert logprobs["tokens"] == list(text)
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob
        assert len(top) == 3


def test_logprobs_zero_gives_the_chosen_token_alone(client: Client) -> None:
    logprobs = complete(client, logprobs=0).json()["choices"][0]["logprobs"]
    assert [len(top) for top in logprobs["top_logprobs"]] == [1] * 5


def test_echo_puts_the_prompt_first(client: Client) -> None:
    choice = complete(client, echo=True).json()["choices"][0]
    assert choice["text"] == "hi" + completion_text(PROMPT, 0, 5)
    assert choice["logprobs"] is None


def test_echo_with_logprobs_covers_prompt_and_completion(client: Client) -> None:
    choice = complete(client, prompt=[104, 105, 106], echo=True, logprobs=1, max_tokens=1).json()[
        "choices"
    ][0]
    generated = completion_text([104, 105, 106], 0, 1)
    assert choice["text"] == "hij" + generated
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["h", "i", "j", generated]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["top_logprobs"]) == 4


def test_echo_of_a_batch_with_max_tokens_zero_scores_the_prompts_alone(client: Client) -> None:
    prompts = [[104, 105], [106, 107, 108]]
    body = complete(client, prompt=prompts, echo=True, logprobs=1, max_tokens=0).json()
    assert [choice["text"] for choice in body["choices"]] == ["hi", "jkl"]
    assert [len(choice["logprobs"]["tokens"]) for choice in body["choices"]] == [2, 3]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "length"]
    assert body["usage"]["completion_tokens"] == 0


def test_echo_with_n_repeats_the_prompt_in_each_choice(client: Client) -> None:
    choices = complete(client, echo=True, logprobs=0, n=2, max_tokens=1).json()["choices"]
    assert [choice["text"][:2] for choice in choices] == ["hi", "hi"]
    assert [choice["logprobs"]["tokens"][:3] for choice in choices] == [["<s>", "h", "i"]] * 2


def test_max_tokens_zero_without_echo_is_refused(client: Client) -> None:
    reply = complete(client, max_tokens=0)
    assert reply.status == 400
    assert reply.error["param"] == "max_tokens"


def test_prompt_logprobs_are_per_token_by_id(client: Client) -> None:
    choice = complete(client, prompt_logprobs=2).json()["choices"][0]
    first, second, _ = choice["prompt_logprobs"]
    assert first is None
    assert second["104"]["decoded_token"] == "h"
    assert second["104"]["rank"] == 1


def test_ids_are_returned_on_request(client: Client) -> None:
    choice = complete(client, return_token_ids=True).json()["choices"][0]
    assert choice["prompt_token_ids"] == PROMPT
    assert bytes(choice["token_ids"]).decode() == choice["text"]


def test_logprob_tokens_are_ids_on_request(client: Client) -> None:
    choice = complete(client, logprobs=1, return_tokens_as_token_ids=True).json()["choices"][0]
    expected = [f"token_id:{ord(char)}" for char in completion_text(PROMPT, 0, 5)]
    assert choice["logprobs"]["tokens"] == expected


def test_an_unknown_model_is_404(client: Client) -> None:
    reply = complete(client, model="other")
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"
    assert "`fake`" in reply.error["message"]
    assert reply.error["param"] == "model"


def test_a_missing_model_is_the_default(client: Client) -> None:
    assert complete(client).json()["model"] == "fake"


def test_model_defaults_fill_what_the_request_leaves_open(
    client: Client, engine: FakeEngine
) -> None:
    engine.sampling_defaults = {"temperature": 0.25, "top_k": 7}
    assert complete(client, top_k=3).status == 200
    assert client.post("/v1/chat/completions", CHAT).status == 200
    (_, _, completion), (_, _, chat) = engine.seen
    assert (completion.temperature, completion.top_k) == (0.25, 3)
    assert (chat.temperature, chat.top_k) == (0.25, 7)
