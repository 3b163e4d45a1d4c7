"""Owns the choices of `/v1/completions`: text, four-list logprobs, echoed prompts."""

from collections.abc import Sequence
from typing import Any

from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprobs
from serve_shim.server.json_response import quoted, to_json
from serve_shim.server.wire.choices import ending
from serve_shim.server.wire.completion import CompletionRequest
from serve_shim.server.wire.prompt import Prompt
from serve_shim.server.wire.token_text import TokenText, completion_logprobs, prompt_logprobs


class CompletionChoices:
    """The ChoiceFormat of completions. `prompts` must carry a text where `echo` is asked for."""

    def __init__(
        self, request: CompletionRequest, prompts: Sequence[Prompt], text: TokenText
    ) -> None:
        self._request = request
        self._prompts = prompts
        self._text = text
        self._n = request.n or 1
        self._has_extras = bool(
            request.echo or request.logprobs is not None or request.return_token_ids
        )
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs | None, ...]] = {}
        self._lengths: dict[int, int] = {}

    def note_prompt(self, prompt_index: int, output: RequestOutput) -> None:
        """Keeps the prompt's logprobs, which only the first output has."""
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt_index] = output.prompt_logprobs

    def piece(self, prompt_index: int, delta: CompletionDelta) -> str:
        """One choice of an event; its first piece begins with the echoed prompt."""
        if self._has_extras:
            return to_json(self._choice(prompt_index, delta))
        index = prompt_index * self._n + delta.index
        return f'{{"index":{index},"text":{quoted(delta.text)},"logprobs":null,{ending(delta)}'

    def whole(self, prompt_index: int, completion: CompletionDelta) -> dict[str, Any]:
        """One complete choice."""
        choice = self._choice(prompt_index, completion)
        if self._request.prompt_logprobs is not None:
            entries = self._prompt_logprobs.get(prompt_index, ())
            choice["prompt_logprobs"] = prompt_logprobs(entries, self._text)
        return choice

    def _choice(self, prompt_index: int, delta: CompletionDelta) -> dict[str, Any]:
        index = prompt_index * self._n + delta.index
        is_first = index not in self._lengths
        echoes = is_first and bool(self._request.echo)
        echoed = self._prompts[prompt_index].text or "" if echoes else ""
        choice: dict[str, Any] = {
            "index": index,
            "text": echoed + delta.text,
            "logprobs": self._logprobs(prompt_index, index, delta, echoes=echoes),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self._request.return_token_ids:
            choice["token_ids"] = delta.token_ids
            choice["prompt_token_ids"] = self._prompts[prompt_index].token_ids if is_first else None
        return choice

    def _logprobs(
        self, prompt_index: int, index: int, delta: CompletionDelta, *, echoes: bool
    ) -> dict[str, Any] | None:
        offset = self._lengths.setdefault(index, 0)
        if self._request.logprobs is None:
            return None
        token_ids = list(delta.token_ids)
        entries: list[TokenLogprobs | None] = list(delta.logprobs or ())
        if echoes:
            token_ids = [*self._prompts[prompt_index].token_ids, *token_ids]
            entries = [*self._prompt_logprobs.get(prompt_index, ()), *entries]
        wire = completion_logprobs(token_ids, entries, self._text, offset)
        self._lengths[index] = offset + sum(map(len, wire["tokens"]))
        return wire
