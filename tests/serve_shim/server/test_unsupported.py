"""Fields that mean something this server does not do: refused by name, unless they ask nothing."""

from typing import Any

import pytest

from .client import Client

REFUSED: list[tuple[str, Any]] = [
    ("guided_json", {"type": "object"}),
    ("guided_regex", "a+"),
    ("guided_choice", ["a"]),
    ("guided_grammar", "root ::= x"),
    ("structured_outputs", {"json": {}}),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("best_of", 2),
    ("use_beam_search", True),
    ("length_penalty", 2.0),
    ("suffix", "x"),
    ("bad_words", ["x"]),
    ("allowed_token_ids", [1]),
    ("logits_processors", ["x"]),
    ("prompt_embeds", "AAAA"),
    ("truncate_prompt_tokens", 3),
    ("cache_salt", "x"),
    ("priority", 1),
    ("chat_template", "x"),
]
ALLOWED: list[tuple[str, Any]] = [
    ("response_format", {"type": "text"}),
    ("response_format", None),
    ("best_of", 1),
    ("best_of", None),
    ("use_beam_search", False),
    ("length_penalty", 1.0),
    ("suffix", None),
    ("suffix", ""),
    ("bad_words", []),
    ("priority", 0),
]


def post(client: Client, path: str, name: str, value: Any) -> Any:
    prompt = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    return client.post(path, {**prompt, "max_tokens": 2, name: value})


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_an_unsupported_field_is_400_by_name(
    client: Client, path: str, name: str, value: Any
) -> None:
    reply = post(client, path, name, value)
    assert reply.status == 400
    assert reply.error["param"] == name
    assert reply.error["code"] == "unsupported_parameter"
    assert f"`{name}`" in reply.error["message"]


@pytest.mark.parametrize(("name", "value"), ALLOWED)
def test_a_field_that_asks_for_nothing_passes(client: Client, name: str, value: Any) -> None:
    assert post(client, "/v1/completions", name, value).status == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [("echo", True), ("functions", [{}]), ("modalities", ["audio"]), ("audio", {"voice": "x"})],
)
def test_a_field_that_chat_does_not_have_is_400(client: Client, name: str, value: Any) -> None:
    assert post(client, "/v1/chat/completions", name, value).error["param"] == name
