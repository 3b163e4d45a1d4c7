"""Owns the edits a request makes to its row of logits; refuses dense work: all edits are sparse.

A row is edited at the ids that it biases, masks or has seen, so the cost does not grow with the
vocabulary and no other row is touched.
"""

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from serve_shim.sampling.params import SamplingParams


class LogitRules:
    """The logit bias, minimum length and penalties of one sequence, with the tokens it has seen."""

    def __init__(self, params: SamplingParams, stop_ids: Collection[int]) -> None:
        bias = params.logit_bias or {}
        self._bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._stop_ids = np.fromiter(stop_ids, np.int64, len(stop_ids))
        self._min_tokens = params.min_tokens
        self._num_outputs = 0
        self._penalties = _penalties(params)

    @property
    def are_over(self) -> bool:
        """Whether nothing is edited any more, whatever follows."""
        masks = bool(self._stop_ids.size) and self._num_outputs < self._min_tokens
        return not (masks or self._bias_ids.size or self._penalties is not None)

    def see_prompt(self, token_ids: Iterable[int]) -> None:
        """Take note of the prompt, which only the repetition penalty looks at."""
        if self._penalties is not None and self._penalties.repetition != 1.0:
            self._penalties.add(token_ids, 0)

    def see_output(self, token_ids: Collection[int]) -> None:
        """Take note of generated tokens."""
        self._num_outputs += len(token_ids)
        if self._penalties is not None:
            self._penalties.add(token_ids, 1)

    def apply(self, row_V: npt.NDArray[np.float32]) -> None:
        """Edit one row of float32 logits in place."""
        if self._bias_ids.size:
            row_V[self._bias_ids] += self._bias
        if self._num_outputs < self._min_tokens:
            row_V[self._stop_ids] = -np.inf
        if self._penalties is not None:
            self._penalties.apply(row_V)


class _SeenTokens:
    """Distinct ids in order of first sight, and how often each was generated."""

    def __init__(self, repetition: float, frequency: float, presence: float) -> None:
        self.repetition = repetition
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)
        self._place: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.int32)

    def add(self, token_ids: Iterable[int], times: int) -> None:
        for token_id in token_ids:
            place = self._place.setdefault(token_id, len(self._place))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token_id
            self._counts[place] += times

    def apply(self, row_V: npt.NDArray[np.float32]) -> None:
        ids = self._ids[: len(self._place)]
        counts = self._counts[: len(self._place)]
        seen = row_V[ids]
        if self.repetition != 1.0:
            penalty = np.float32(self.repetition)
            seen = np.where(seen > 0, seen / penalty, seen * penalty)
        seen -= counts.astype(np.float32) * self._frequency
        seen -= (counts > 0).astype(np.float32) * self._presence
        row_V[ids] = seen


def _penalties(params: SamplingParams) -> _SeenTokens | None:
    triple = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    return None if triple == (1.0, 0.0, 0.0) else _SeenTokens(*triple)
