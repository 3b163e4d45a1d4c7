"""Owns the sampling state of every running sequence, one slot each; refuses to look at logits.

A slot is fully rewritten when it is assigned: nothing of its previous owner can leak.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from serve_shim.sampling.params import SamplingParams
from serve_shim.sampling.rules import LogitRules, needs_rules

NO_LOGPROBS = -1
"""The value of `num_logprobs` for a slot whose request asked for none."""


class SamplingTable:
    """Arrays indexed by slot, so that a step reads the parameters of a batch in a few gathers.

    `is_plain` marks greedy slots without logit rules or logprobs, for which a step needs nothing
    but the argmax. `is_truncated` marks slots that use `top_k`, `top_p` or `min_p`.
    """

    def __init__(self, num_slots: int) -> None:
        self.is_greedy = np.ones(num_slots, np.bool_)
        self.is_plain = np.ones(num_slots, np.bool_)
        self.is_truncated = np.zeros(num_slots, np.bool_)
        self.temperature = np.ones(num_slots, np.float32)
        self.top_p = np.ones(num_slots, np.float64)
        self.top_k = np.zeros(num_slots, np.int64)
        self.min_p = np.zeros(num_slots, np.float64)
        self.num_logprobs = np.full(num_slots, NO_LOGPROBS, np.int64)
        self.keys = np.zeros(num_slots, np.uint64)
        self.rules: dict[int, LogitRules] = {}

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
        self.is_greedy[slot] = params.is_greedy
        self.is_truncated[slot] = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self.temperature[slot] = params.temperature
        self.top_p[slot] = params.top_p
        self.top_k[slot] = max(params.top_k, 0)
        self.min_p[slot] = params.min_p
        self.num_logprobs[slot] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.keys[slot] = key
        self._assign_rules(slot, params, stop_ids, prompt_ids, output_ids)
        self.is_plain[slot] = (
            params.is_greedy and params.logprobs is None and slot not in self.rules
        )

    def observe(self, slots: Sequence[int], token_ids: Sequence[int]) -> None:
        """Take note of the tokens that a step chose for these slots."""
        if not self.rules:
            return
        for slot, token_id in zip(slots, token_ids, strict=True):
            rules = self.rules.get(slot)
            if rules is not None:
                rules.see_output((token_id,))

    def are_plain(self, slots: npt.NDArray[np.int64]) -> bool:
        """Whether the argmax is all that these slots need."""
        return bool(self.is_plain[slots].all())

    def _assign_rules(
        self,
        slot: int,
        params: SamplingParams,
        stop_ids: Collection[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        self.rules.pop(slot, None)
        if not needs_rules(params):
            return
        rules = LogitRules(params, stop_ids)
        rules.see_prompt(prompt_ids)
        rules.see_output(output_ids)
        self.rules[slot] = rules
