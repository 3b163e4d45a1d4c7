"""Owns the fields that ask for something this server does not do: refused by name, never ignored.

A field passes while its value asks for nothing: null, false, an empty text or list, or the value
listed here. An empty object asks for something: as a schema it means any JSON.
"""

from collections.abc import Mapping
from typing import Any

from serve_shim.errors import RequestError

_NO_STRUCTURE = "structured output is not supported; remove it and check the answer yourself"
_NO_BEAMS = "beam search is not supported; use `n` with sampling"
_NO_IDS = "restricting the vocabulary is not supported; use `logit_bias`"
_NO_MEDIA = "only text goes in and out"
_NO_CODE = "it would run code or decode tensors sent by a client"

_REASONS: Mapping[str, str] = {
    "guided_json": _NO_STRUCTURE,
    "guided_regex": _NO_STRUCTURE,
    "guided_choice": _NO_STRUCTURE,
    "guided_grammar": _NO_STRUCTURE,
    "guided_decoding_backend": _NO_STRUCTURE,
    "structured_outputs": _NO_STRUCTURE,
    "grammar": _NO_STRUCTURE,
    "regex": _NO_STRUCTURE,
    "json_schema": _NO_STRUCTURE,
    "response_format": _NO_STRUCTURE,
    "best_of": "use `n`: every completion is returned",
    "use_beam_search": _NO_BEAMS,
    "length_penalty": _NO_BEAMS,
    "early_stopping": _NO_BEAMS,
    "suffix": "the models served here do not fill in the middle",
    "bad_words": _NO_IDS,
    "allowed_token_ids": _NO_IDS,
    "logits_processors": _NO_CODE,
    "prompt_embeds": _NO_CODE,
    "truncate_prompt_tokens": "shorten the prompt yourself; nothing is cut silently",
    "cache_salt": "the prefix cache is not salted; disable it with `--no-enable-prefix-caching`",
    "priority": "requests are served in order of arrival",
    "echo": "only `/v1/completions` echoes the prompt",
    "chat_template": "the template of the model, or of `--chat-template`, is used",
    "functions": "use `tools`",
    "function_call": "use `tools` and `tool_choice`",
    "audio": _NO_MEDIA,
    "mm_processor_kwargs": _NO_MEDIA,
    "modalities": _NO_MEDIA,
    "web_search_options": "this server fetches nothing from the network",
    "prediction": "predicted outputs are not supported",
    "thinking_token_budget": "reasoning is not counted apart from the answer",
    "documents": "put the documents into the messages",
    "lora_request": "adapters are not supported",
}
_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "length_penalty": (1, 1.0),
    "priority": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "mm_processor_kwargs": ({},),
}


def refuse_unsupported(body: Mapping[str, Any], *, supported: frozenset[str]) -> None:
    """RequestError (code `unsupported_parameter`) for the first field that asks for too much."""
    for name in body.keys() & _REASONS.keys():
        if name not in supported and not _asks_nothing(name, body[name]):
            raise unsupported(name, _REASONS[name])


def unsupported(name: str, reason: str) -> RequestError:
    """The error for a field that is understood but not supported."""
    return RequestError(
        f"`{name}` is not supported: {reason}.", param=name, code="unsupported_parameter"
    )


def _asks_nothing(name: str, value: Any) -> bool:
    if value is None or value is False or value in ("", []):
        return True
    return not isinstance(value, bool) and value in _HARMLESS.get(name, ())
