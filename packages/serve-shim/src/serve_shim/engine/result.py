"""Owns whole results for callers who do not stream; refuses to compute anything."""

from dataclasses import dataclass

from serve_shim.engine.output import (
    CompletionDelta,
    FinishReason,
    RequestOutput,
    TokenLogprobs,
)


@dataclass(frozen=True, slots=True)
class CompletionResult:
    """One finished completion; `cumulative_logprob` is None where no logprobs were asked for."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    cumulative_logprob: float | None
    finish_reason: FinishReason
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class RequestResult:
    """A prompt with its completions, by index; `prompt` is None where only ids were given."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionResult, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


class ResultBuilder:
    """Collects the outputs of one request until it is finished."""

    def __init__(self, prompt: str | None) -> None:
        self._prompt = prompt
        self._outputs: list[RequestOutput] = []

    def add(self, output: RequestOutput) -> None:
        """Take the next output."""
        self._outputs.append(output)

    def build(self) -> RequestResult:
        """The whole; call it once the request is finished."""
        deltas: dict[int, list[CompletionDelta]] = {}
        for output in self._outputs:
            for delta in output.deltas:
                deltas.setdefault(delta.index, []).append(delta)
        first = self._outputs[0]
        return RequestResult(
            self._prompt,
            first.prompt_token_ids,
            tuple(_completion(index, deltas[index]) for index in sorted(deltas)),
            first.prompt_logprobs,
        )


def _completion(index: int, deltas: list[CompletionDelta]) -> CompletionResult:
    last = deltas[-1]
    if last.finish_reason is None:
        raise ValueError(f"completion {index} is not finished")
    entries = tuple(entry for delta in deltas for entry in delta.logprobs or ())
    has_logprobs = any(delta.logprobs is not None for delta in deltas)
    return CompletionResult(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=entries if has_logprobs else None,
        cumulative_logprob=sum(entry.logprob for entry in entries) if has_logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
