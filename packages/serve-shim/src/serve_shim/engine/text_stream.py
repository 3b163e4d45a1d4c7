"""Owns the text of one sequence as its tokens arrive; refuses to decide when generation ends.

Text is passed on as soon as it is certain: whole UTF-8 characters, and nothing that may turn out
to begin a stop string.
"""

from typing import TYPE_CHECKING

from serve_shim.engine.stop_matcher import StopMatcher
from serve_shim.sampling.params import SamplingParams

if TYPE_CHECKING:
    from serve_shim.tokenization.tokenizer import Tokenizer


class TextStream:
    """Detokenises one sequence; without a tokenizer its text is always empty."""

    def __init__(self, tokenizer: "Tokenizer | None", params: SamplingParams) -> None:
        stops = params.stop_strings
        self._decoder = tokenizer.stream(params.skip_special_tokens) if tokenizer else None
        self._matcher = (
            StopMatcher(stops, include_stop=params.include_stop_str_in_output) if stops else None
        )

    @property
    def matched(self) -> str | None:
        """The stop string that was completed, None as long as there is none."""
        return self._matcher.matched if self._matcher else None

    def push(self, token_id: int, *, may_match: bool) -> str:
        """The text that is certain after this token."""
        if self._decoder is None:
            return ""
        piece = self._decoder.step(token_id)
        return self._matcher.push(piece, may_match=may_match) if self._matcher else piece

    def flush(self, *, may_match: bool = True) -> str:
        """What is left when no token follows: open bytes, then text held back for a match."""
        if self._decoder is None:
            return ""
        piece = self._decoder.flush()
        if self._matcher is None:
            return piece
        text = self._matcher.push(piece, may_match=may_match)
        return text if self._matcher.matched else text + self._matcher.flush()
