"""Owns turning generated ids into text piece by piece; refuses to emit half a character."""

import codecs
from collections.abc import Callable, Collection


class TokenStream:
    """Incremental decoder of one completion.

    A UTF-8 sequence that is spread over tokens is held back until it is whole, so U+FFFD appears
    only for bytes that are no UTF-8. The text of all steps and the flush together is the text of
    the whole. The space that begins the first token is kept: a completion continues its prompt.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], skipped: Collection[int] = frozenset()
    ) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_open = False

    def step(self, token_id: int) -> str:
        """Return the text that `token_id` completes, "" while a character is open."""
        if token_id in self._skipped:
            return ""
        data = self._token_bytes(token_id)
        if not self._is_open and data.isascii():  # most tokens, at a fraction of the cost
            return data.decode("ascii")
        text = self._decoder.decode(data)
        self._is_open = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that was never finished."""
        return self._decoder.decode(b"", final=True)
