"""Owns the model, its cache memory and the step buffers of one rank; refuses scheduling."""

from typing import NamedTuple

import torch

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.kv_cache import CacheLayout, allocate_caches
from serve_shim.engine.language_model import LanguageModel
from serve_shim.engine.prompt_scorer import score_prompt
from serve_shim.engine.request import Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_buffers import StepBuffers, StepInputs
from serve_shim.engine.step_clock import StepClock, StepPhase
from serve_shim.engine.step_plan import StepPlan
from serve_shim.sampling.sampler import Sampled, Sampler
from serve_shim.sampling.table import SamplingTable


class StepResult(NamedTuple):
    """The sequences that got a token in a step, and their tokens in the same order."""

    sequences: list[Sequence]
    sampled: Sampled


class Worker:
    """Runs steps of `model`; `sampling` holds the parameters of the sequences by slot."""

    def __init__(self, model: LanguageModel, config: EngineConfig, layout: CacheLayout) -> None:
        self._model = model
        self._buffers = StepBuffers(config)
        self.sampling = SamplingTable(config.max_num_seqs)
        self._sampler = Sampler(self.sampling)
        model.bind_kv_cache(allocate_caches(layout, config.num_blocks))

    @property
    def step_inputs(self) -> StepInputs:
        """The static memory that every step is a part of."""
        return self._buffers.whole

    @torch.inference_mode()
    def execute(self, plan: StepPlan, table: SlotTable, clock: StepClock) -> StepResult | None:
        """Compute the plan's tokens, and one new token for each sequence that it completes.

        None when it completes no sequence, so that there was nothing to sample.
        """
        inputs = self._buffers.fill(plan, table)
        clock.lap(StepPhase.INPUTS)
        hidden = self._model(inputs.input_ids, inputs.positions, inputs.attention)
        clock.lap(StepPhase.FORWARD)
        self._score_prompts(plan, hidden)
        sequences, completes = plan.sequences, plan.completes()
        if not all(completes):
            picked = [row for row, is_complete in enumerate(completes) if is_complete]
            sequences, inputs = [sequences[row] for row in picked], inputs.take(picked)
        if not sequences:
            clock.lap(StepPhase.LOGITS)
            return None
        return self._sample(hidden, sequences, inputs, clock)

    def _sample(
        self,
        hidden: torch.Tensor,
        sequences: list[Sequence],
        inputs: StepInputs,
        clock: StepClock,
    ) -> StepResult:
        if len(sequences) != len(hidden):
            hidden = hidden[inputs.last_rows]
        logits = self._model.compute_logits(hidden)
        clock.lap(StepPhase.LOGITS)
        slots = [sequence.slot for sequence in sequences]
        sampled = self._sampler.sample(logits, slots, inputs.ends)
        clock.lap(StepPhase.SAMPLE)
        return StepResult(sequences, sampled)

    def _score_prompts(self, plan: StepPlan, hidden: torch.Tensor) -> None:
        row = 0
        for sequence, length in zip(plan.sequences, plan.lengths, strict=True):
            if sequence.scores_prompt:
                rows = hidden[row : row + length]
                score_prompt(self._model, rows, sequence.request, sequence.num_computed)
            row += length
