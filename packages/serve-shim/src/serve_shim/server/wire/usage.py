"""Owns the token counts of one API request: all its prompts and all its completions."""

from collections.abc import Sequence
from typing import Any

from serve_shim.engine.output import RequestOutput


class Usage:
    """Running counts; a prompt counts once however many completions it has."""

    def __init__(self, prompt_lengths: Sequence[int]) -> None:
        self._prompt_tokens = sum(prompt_lengths)
        self._completion_tokens = 0
        self._cached = [0] * len(prompt_lengths)

    def note(self, prompt_index: int, output: RequestOutput) -> None:
        """Adds the tokens of one output."""
        self._cached[prompt_index] = output.num_cached_tokens
        for delta in output.deltas:
            self._completion_tokens += len(delta.token_ids)

    def to_wire(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached)},
        }
