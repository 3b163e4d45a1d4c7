"""Owns the model, its cache memory and the step buffers of one rank; refuses scheduling."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.kv_cache import CacheLayout, allocate_caches
from serve_shim.engine.language_model import LanguageModel
from serve_shim.engine.prompt_scorer import score_prompt
from serve_shim.engine.request import Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_buffers import StepBuffers, StepInputs
from serve_shim.engine.step_plan import StepPlan
from serve_shim.sampling.sampler import Sampled, Sampler
from serve_shim.sampling.table import SamplingTable


class StepResult(NamedTuple):
    """The sequences that got a token in a step: N of them, in the order of the arrays.

    `slots` [N] int64 and `places` [N] int64 say where in the slot table their tokens go.
    """

    sequences: list[Sequence]
    slots: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    sampled: Sampled


class Worker:
    """Runs steps of `model`; `sampling` holds the parameters of the sequences by slot."""

    def __init__(
        self, model: LanguageModel, config: EngineConfig, layout: CacheLayout, vocab_size: int
    ) -> None:
        self._model = model
        self._buffers = StepBuffers(config)
        self.sampling = SamplingTable(config.max_num_seqs)
        self._sampler = Sampler(self.sampling, config.max_num_seqs, vocab_size)
        model.bind_kv_cache(allocate_caches(layout, config.num_blocks))

    @torch.inference_mode()
    def execute(self, plan: StepPlan, table: SlotTable) -> StepResult | None:
        """Compute the plan's tokens, and one new token for each sequence that it completes.

        None when it completes no sequence, so that there was nothing to sample.
        """
        inputs = self._buffers.fill(plan, table)
        hidden = self._model(inputs.input_ids, inputs.positions, inputs.attention)
        self._score_prompts(plan, hidden)
        completes = plan.completes()
        if all(completes):
            return self._sample(hidden, plan.sequences, inputs)
        picked = np.flatnonzero(completes)
        if not picked.size:
            return None
        return self._sample(hidden, [plan.sequences[row] for row in picked], inputs.take(picked))

    def _sample(
        self, hidden: torch.Tensor, sequences: list[Sequence], inputs: StepInputs
    ) -> StepResult:
        if len(sequences) != len(hidden):
            hidden = hidden[torch.from_numpy(inputs.last_rows)]
        logits = self._model.compute_logits(hidden)
        sampled = self._sampler.sample(logits, inputs.slots, inputs.ends)
        return StepResult(sequences, inputs.slots, inputs.ends, sampled)

    def _score_prompts(self, plan: StepPlan, hidden: torch.Tensor) -> None:
        row = 0
        for sequence, length in zip(plan.sequences, plan.lengths, strict=True):
            if sequence.scores_prompt:
                rows = hidden[row : row + length]
                score_prompt(self._model, rows, sequence.request, sequence.num_computed)
            row += length
