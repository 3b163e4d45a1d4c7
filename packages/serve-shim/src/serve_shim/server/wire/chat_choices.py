"""Owns the choices of `/v1/chat/completions`: messages, and deltas whose first names the role."""

from collections.abc import Sequence
from typing import Any

from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprobs
from serve_shim.server.json_response import quoted, to_json
from serve_shim.server.wire.chat import ChatRequest
from serve_shim.server.wire.choices import ending
from serve_shim.server.wire.prompt import Prompt
from serve_shim.server.wire.token_text import TokenText, chat_logprobs, prompt_logprobs


class ChatChoices:
    """The ChoiceFormat of chat, which has one prompt."""

    def __init__(self, request: ChatRequest, prompts: Sequence[Prompt], text: TokenText) -> None:
        self._request = request
        self._prompts = prompts
        self._text = text
        self._has_extras = bool(request.logprobs or request.return_token_ids)
        self._spoken: set[int] = set()
        self._prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()

    def note_prompt(self, prompt_index: int, output: RequestOutput) -> None:
        """Keeps the prompt's logprobs, which only the first output has."""
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs

    def piece(self, prompt_index: int, delta: CompletionDelta) -> str:
        """One choice of an event; the role comes with the first token, not before it."""
        if delta.index not in self._spoken:
            self._spoken.add(delta.index)
            message = {"role": "assistant", "content": delta.text}
            return to_json(self._choice(prompt_index, delta, is_first=True, delta=message))
        if self._has_extras:
            message = {"content": delta.text}
            return to_json(self._choice(prompt_index, delta, is_first=False, delta=message))
        text = quoted(delta.text)
        return (
            f'{{"index":{delta.index},"delta":{{"content":{text}}},"logprobs":null,{ending(delta)}'
        )

    def whole(self, prompt_index: int, completion: CompletionDelta) -> dict[str, Any]:
        """One complete choice."""
        message = {"role": "assistant", "content": completion.text}
        choice = self._choice(prompt_index, completion, is_first=True, message=message)
        if self._request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._prompt_logprobs, self._text)
        return choice

    def _choice(
        self, prompt_index: int, part: CompletionDelta, /, *, is_first: bool, **message: Any
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": part.index,
            **message,
            "logprobs": self._logprobs(part),
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
        }
        if self._request.return_token_ids:
            choice["token_ids"] = part.token_ids
            choice["prompt_token_ids"] = self._prompts[prompt_index].token_ids if is_first else None
        return choice

    def _logprobs(self, part: CompletionDelta) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        return chat_logprobs(part.logprobs or (), self._text, self._request.top_logprobs or 0)
