"""Owns the step from engine outputs to choices: the interface of its two formats, and gathering.

Choice `prompt * n + completion` answers prompt `prompt`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprobs
from serve_shim.server.json_response import to_json


class ChoiceFormat(Protocol):
    """How the choices of one request look; keeps what successive pieces of a choice need."""

    def note_prompt(self, prompt_index: int, output: RequestOutput) -> None:
        """Takes from an output what belongs to the prompt, before its deltas are formatted."""
        ...

    def piece(self, prompt_index: int, delta: CompletionDelta) -> str:
        """A choice of a stream's event, as JSON."""
        ...

    def whole(self, prompt_index: int, completion: CompletionDelta) -> Mapping[str, Any]:
        """A choice of a body that does not stream."""
        ...


def ending(delta: CompletionDelta) -> str:
    """The last fields of a choice, as JSON; most deltas end nothing."""
    if delta.finish_reason is None:
        return '"finish_reason":null,"stop_reason":null}'
    return f'"finish_reason":"{delta.finish_reason}","stop_reason":{to_json(delta.stop_reason)}}}'


class Gathered:
    """All deltas of one request, by (prompt, completion)."""

    def __init__(self) -> None:
        self._deltas: dict[tuple[int, int], list[CompletionDelta]] = {}

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Keeps the deltas of one output."""
        for delta in output.deltas:
            self._deltas.setdefault((prompt_index, delta.index), []).append(delta)

    def completions(self) -> Iterable[tuple[int, CompletionDelta]]:
        """(prompt index, whole completion), in the order of the choices."""
        for (prompt_index, _), deltas in sorted(self._deltas.items(), key=lambda item: item[0]):
            yield prompt_index, _joined(deltas)


def _joined(deltas: list[CompletionDelta]) -> CompletionDelta:
    last = deltas[-1]
    logprobs: list[TokenLogprobs] | None = None
    if any(delta.logprobs is not None for delta in deltas):
        logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    return CompletionDelta(
        index=last.index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=None if logprobs is None else tuple(logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
