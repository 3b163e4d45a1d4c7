"""Owns the sampling state of every running sequence, one slot each; refuses to look at logits.

A slot is fully rewritten when it is assigned: nothing of its previous owner can leak.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from serve_shim.sampling.params import SamplingParams
from serve_shim.sampling.rules import LogitRules

NO_LOGPROBS = -1
"""The value of `num_logprobs` for a slot whose request asked for none."""

GREEDY = 0.0
"""The temperature of a slot that takes the most likely token."""


class BatchParams(NamedTuple):
    """The parameters of N slots; tensors as the op `sample_tokens` takes them.

    `num_logprobs` is None where no slot wants any, else `NO_LOGPROBS` for those that do not.
    `edited` is None where no slot has logit rules, else the rows that have some, their slots, and
    the parameters of these alone.
    """

    temperature: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    key: torch.Tensor
    num_logprobs: list[int] | None
    edited: "EditedRows | None"


class EditedRows(NamedTuple):
    """The rows of a batch whose logits are edited before the choice."""

    rows: list[int]
    slots: list[int]
    params: BatchParams


class SamplingTable:
    """Arrays indexed by slot, so that a step reads the parameters of a batch in a few gathers."""

    def __init__(self, num_slots: int) -> None:
        self.temperature = np.full(num_slots, GREEDY, np.float32)
        self.top_p = np.ones(num_slots, np.float64)
        self.top_k = np.zeros(num_slots, np.int64)
        self.min_p = np.zeros(num_slots, np.float32)
        self.num_logprobs = np.full(num_slots, NO_LOGPROBS, np.int64)
        self.key = np.zeros(num_slots, np.int64)
        self.rules: dict[int, LogitRules] = {}
        self._known: tuple[list[int], BatchParams] | None = None

    def assign(
        self,
        slot: int,
        params: SamplingParams,
        *,
        key: int,
        stop_ids: Collection[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        """Give `slot` to a sequence; `output_ids` are those from before a pre-emption."""
        self._known = None
        self.temperature[slot] = GREEDY if params.is_greedy else params.temperature
        self.top_p[slot] = params.top_p
        self.top_k[slot] = max(params.top_k, 0)
        self.min_p[slot] = params.min_p
        self.num_logprobs[slot] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.key[slot] = key
        self._assign_rules(slot, params, stop_ids, prompt_ids, output_ids)

    def gather(self, slots: list[int]) -> BatchParams:
        """The parameters of these slots; those of the last call are kept while they hold."""
        if self._known is None or self._known[0] != slots:
            self._known = slots, self._gather(slots)
        return self._known[1]

    def edit(self, rows_NV: npt.NDArray[np.float32], slots: Sequence[int]) -> None:
        """Apply the logit rules of these slots to their rows of logits, in place."""
        for row, slot in enumerate(slots):
            rules = self.rules.get(slot)
            if rules is not None:
                rules.apply(rows_NV[row])

    def observe(self, slot: int, token_id: int) -> None:
        """Take note of the token that a step chose for this slot."""
        rules = self.rules.get(slot)
        if rules is None:
            return
        rules.see_output((token_id,))
        if rules.are_over:
            del self.rules[slot]
            self._known = None

    def _gather(self, slots: list[int]) -> BatchParams:
        rows = [row for row, slot in enumerate(slots) if slot in self.rules]
        params = self._gather_plain(slots)
        if not rows:
            return params
        edited = [slots[row] for row in rows]
        return params._replace(edited=EditedRows(rows, edited, self._gather_plain(edited)))

    def _gather_plain(self, slots: list[int]) -> BatchParams:
        num_logprobs = self.num_logprobs[slots]
        return BatchParams(
            temperature=torch.from_numpy(self.temperature[slots]),
            min_p=torch.from_numpy(self.min_p[slots]),
            top_k=torch.from_numpy(self.top_k[slots]),
            top_p=torch.from_numpy(self.top_p[slots]),
            key=torch.from_numpy(self.key[slots]),
            num_logprobs=num_logprobs.tolist() if (num_logprobs != NO_LOGPROBS).any() else None,
            edited=None,
        )

    def _assign_rules(
        self,
        slot: int,
        params: SamplingParams,
        stop_ids: Collection[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        self.rules.pop(slot, None)
        rules = LogitRules(params, stop_ids)
        rules.see_prompt(prompt_ids)
        rules.see_output(output_ids)
        if not rules.are_over:
            self.rules[slot] = rules
