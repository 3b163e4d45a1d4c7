"""Owns chat messages: which keys a template gets to see, and text as the only content."""

from collections.abc import Mapping
from typing import Any

from serve_shim.errors import RequestError
from serve_shim.server.strict_json import loads_object

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_MESSAGES = 4096
_PASSED_ON = ("name", "tool_call_id", "reasoning_content")


def to_messages(value: object) -> list[dict[str, Any]]:
    """The messages for a chat template; RequestError (param `messages`) names the wrong one."""
    if not isinstance(value, list) or not value:
        raise RequestError("`messages` must be a list of at least one message.", param="messages")
    if len(value) > _MAX_MESSAGES:
        raise RequestError(
            f"`messages` has {len(value)} entries; at most {_MAX_MESSAGES} are taken.",
            param="messages",
        )
    return [_to_message(message, f"messages.{index}") for index, message in enumerate(value)]


def _to_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _wrong(where, "must be an object with `role` and `content`")
    role = message.get("role")
    if role not in _ROLES:
        raise _wrong(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
    clean: dict[str, Any] = {"role": role, "content": _to_text(message, where)}
    for key in _PASSED_ON:
        if isinstance(message.get(key), str):
            clean[key] = message[key]
    if message.get("tool_calls"):
        clean["tool_calls"] = _to_tool_calls(message["tool_calls"], f"{where}.tool_calls")
    return clean


def _to_text(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        parts = [_part_text(part, f"{where}.content.{i}") for i, part in enumerate(content)]
        return "\n".join(parts)
    if content is None and message.get("role") == "assistant" and message.get("tool_calls"):
        return ""
    raise _wrong(f"{where}.content", "must be a string or a list of text parts")


def _part_text(part: object, where: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") not in ("text", "input_text"):
        raise _wrong(where, 'must be `{"type": "text", "text": ...}`; only text is taken')
    text = part.get("text")
    if not isinstance(text, str):
        raise _wrong(f"{where}.text", "must be a string")
    return text


def _to_tool_calls(value: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise _wrong(where, "must be a list")
    return [_to_tool_call(call, f"{where}.{index}") for index, call in enumerate(value)]


def _to_tool_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _wrong(where, "must hold a `function` with `name` and `arguments`")
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise _wrong(f"{where}.function", "must hold `name` and `arguments` as strings")
    try:
        parsed = loads_object(arguments.encode("utf-8")) if arguments.strip() else {}
    except RequestError as error:
        raise _wrong(f"{where}.function.arguments", f"is no JSON object: {error}") from None
    identity = call.get("id")
    return {
        "type": "function",
        "function": {"name": name, "arguments": parsed},
        **({"id": identity} if isinstance(identity, str) else {}),
    }


def _wrong(where: str, what: str) -> RequestError:
    return RequestError(f"`{where}` {what}.", param="messages")
