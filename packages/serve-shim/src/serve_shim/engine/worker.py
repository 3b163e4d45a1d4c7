"""Owns the model, its cache memory and the sampling state of one rank; refuses scheduling."""

import torch

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.kv_cache import CacheLayout, allocate_caches
from serve_shim.engine.language_model import LanguageModel
from serve_shim.engine.prompt_scorer import score_prompt
from serve_shim.engine.step_clock import StepClock, StepPhase
from serve_shim.engine.step_order import SlotAssignment, StepOrder, StepOutput
from serve_shim.sampling.sampler import Sampler
from serve_shim.sampling.table import SamplingTable


class Worker:
    """Runs steps of `model`, in the engine's process or as one of several ranks.

    A rank that does not sample still takes part in the logits, and puts out no tokens.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: EngineConfig,
        layout: CacheLayout,
        *,
        can_sample: bool = True,
    ) -> None:
        self._model = model
        self._table = SamplingTable(config.max_num_seqs)
        self._sampler = Sampler(self._table) if can_sample else None
        model.bind_kv_cache(allocate_caches(layout, config.num_blocks))

    def assign(self, assignment: SlotAssignment) -> None:
        """Give a slot to a sequence, before the first step that has it."""
        slot, params, key, stop_ids, prompt_ids, output_ids = assignment
        self._table.assign(
            slot,
            params,
            key=key,
            stop_ids=stop_ids,
            prompt_ids=prompt_ids,
            output_ids=output_ids,
        )

    def observe(self, slot: int, token_id: int) -> None:
        """Take note of the token that a sequence was given, before its next step."""
        self._table.observe(slot, token_id)

    @torch.inference_mode()
    def run(self, order: StepOrder, clock: StepClock) -> StepOutput:
        """Compute a step's tokens, and one new token for each of the order's slots."""
        inputs = order.inputs
        hidden = self._model(inputs.input_ids, inputs.positions, inputs.attention)
        clock.lap(StepPhase.FORWARD)
        scores = [score_prompt(self._model, hidden, prompt) for prompt in order.prompts]
        if not order.slots:
            clock.lap(StepPhase.LOGITS)
            return StepOutput(None, scores)
        if order.rows is not None:
            inputs = inputs.take(order.rows)
        if len(order.slots) != len(hidden):
            hidden = hidden[inputs.last_rows]
        logits = self._model.compute_logits(hidden)
        clock.lap(StepPhase.LOGITS)
        if self._sampler is None:
            return StepOutput(None, scores)
        sampled = self._sampler.sample(logits, order.slots, inputs.ends)
        clock.lap(StepPhase.SAMPLE)
        return StepOutput(sampled, scores)
