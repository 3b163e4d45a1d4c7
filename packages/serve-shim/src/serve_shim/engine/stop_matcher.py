"""Owns the search for stop strings in text that arrives in pieces; refuses to see tokens.

The match that ends first wins, the longest of those that end together, so the outcome is the same
however the text is cut into pieces. Only text that may begin a stop string is held back.
"""


class StopMatcher:
    """Passes text through until one of `stops` is complete."""

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool) -> None:
        self._stops = stops
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str, *, may_match: bool = True) -> str:
        """The text that may be shown after `piece`; sets `matched` when a stop is complete.

        With `may_match` false a stop that completes now is passed over; one that begins now may
        still complete later.
        """
        text = self._held + piece
        found = self._find(text, len(self._held)) if may_match else None
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[: start + len(self.matched)] if self._include_stop else text[:start]
        shown = len(text) - self._possible_prefix(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The text held back, once it is certain that no more follows."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str, num_old: int) -> tuple[int, str] | None:
        """(start, stop) of the match to honour; a match must end in the new part of `text`."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _possible_prefix(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
