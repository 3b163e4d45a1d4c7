"""Owns which graphs a mode captures and which of them a step runs; refuses tensors.

Q: the largest number of sequences that one step can have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ir_passes.config import CudagraphMode

_UNIFORM_IS_FULL = (
    CudagraphMode.FULL,
    CudagraphMode.FULL_DECODE_ONLY,
    CudagraphMode.FULL_AND_PIECEWISE,
)
_HAS_PIECES = (CudagraphMode.PIECEWISE, CudagraphMode.FULL_AND_PIECEWISE)


@dataclass(frozen=True, slots=True)
class GraphKey:
    """One captured size.

    Attributes:
        mode: FULL, or PIECEWISE where attention runs between the graphs of the pieces.
        tokens: rows of tokens, padding included.
        requests: rows of requests, padding included; None where only attention sees them.
        uniform: every request has exactly one token.
    """

    mode: CudagraphMode
    tokens: int
    requests: int | None = None
    uniform: bool = False


class Uncaptured(StrEnum):
    """Why a step ran as the compiled program, without a graph."""

    TOO_LARGE = "more tokens than the largest captured size"
    NOT_UNIFORM = "a request has more than one token, and only decode steps are captured"
    REBOUND = "other KV caches were bound after the capture"


class GraphTable:
    """The graphs of one mode at ascending `sizes`.

    A step of T tokens runs at the smallest size that holds it. Full graphs have rows for as many
    requests as tokens, but at most Q: with more tokens than that, the last rows belong to none.

    Attributes:
        keys: all graphs to capture, the largest first, so that the others fit into its memory.
    """

    def __init__(self, mode: CudagraphMode, sizes: Sequence[int], max_num_seqs: int) -> None:
        self.mode = mode
        self.sizes = tuple(sizes)
        self._max_num_seqs = max_num_seqs
        self.keys = tuple(reversed(self._ascending()))

    def find(self, num_tokens: int, num_requests: int) -> GraphKey | Uncaptured:
        """The graph of a step, or why it has none."""
        place = bisect_left(self.sizes, num_tokens)
        if place == len(self.sizes):
            return Uncaptured.TOO_LARGE
        size = self.sizes[place]
        if num_tokens == num_requests and self.mode in _UNIFORM_IS_FULL:
            return self._full(size, True)
        if self.mode is CudagraphMode.FULL:
            return self._full(size, False)
        if self.mode in _HAS_PIECES:
            return GraphKey(CudagraphMode.PIECEWISE, size)
        return Uncaptured.NOT_UNIFORM

    def _ascending(self) -> list[GraphKey]:
        keys: list[GraphKey] = []
        for below, size in zip((0, *self.sizes), self.sizes, strict=False):
            # One token is one request's: with a graph for uniform steps it never needs another.
            is_mixed = size > 1 or self.mode not in _UNIFORM_IS_FULL
            if is_mixed and self.mode in _HAS_PIECES:
                keys.append(GraphKey(CudagraphMode.PIECEWISE, size))
            if is_mixed and self.mode is CudagraphMode.FULL:
                keys.append(self._full(size, False))
            if self.mode in _UNIFORM_IS_FULL and below < self._max_num_seqs:
                keys.append(self._full(size, True))
        return keys

    def _full(self, size: int, uniform: bool) -> GraphKey:
        return GraphKey(CudagraphMode.FULL, size, min(size, self._max_num_seqs), uniform)
