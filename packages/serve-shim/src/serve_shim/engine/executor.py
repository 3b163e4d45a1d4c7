"""Owns the way from a step's plan to its tokens; refuses to know where the model runs."""

from typing import NamedTuple, Protocol

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.prompt_scorer import find_prompts, keep_scores
from serve_shim.engine.request import Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_buffers import StepBuffers
from serve_shim.engine.step_clock import StepClock, StepPhase
from serve_shim.engine.step_memory import StepInputs
from serve_shim.engine.step_order import SlotAssignment, StepOrder, StepOutput
from serve_shim.engine.step_plan import StepPlan
from serve_shim.sampling.sampler import Sampled


class StepRunner(Protocol):
    """What computes steps: a `Worker` of this process, or several on ranks."""

    def assign(self, assignment: SlotAssignment) -> None:
        """Give a slot to a sequence, before the first step that has it."""
        ...

    def observe(self, slot: int, token_id: int) -> None:
        """Take note of the token that a sequence was given, before its next step."""
        ...

    def run(self, order: StepOrder, clock: StepClock) -> StepOutput:
        """Compute a step; an exception means that no further step can be."""
        ...


class StepResult(NamedTuple):
    """The sequences that got a token in a step, and their tokens in the same order."""

    sequences: list[Sequence]
    sampled: Sampled


class Executor:
    """Has plans computed by `runner`."""

    def __init__(self, runner: StepRunner, config: EngineConfig) -> None:
        self._runner = runner
        self._buffers = StepBuffers(config)

    @property
    def step_inputs(self) -> StepInputs:
        """The static memory that every step is a part of."""
        return self._buffers.whole

    def assign(self, sequence: Sequence) -> None:
        """A sequence has got its slot."""
        request = sequence.request
        self._runner.assign(
            SlotAssignment(
                slot=sequence.slot,
                params=request.params,
                key=sequence.key,
                stop_ids=request.stop_ids,
                prompt_ids=request.prompt_ids,
                output_ids=tuple(sequence.output_ids),
            )
        )

    def observe(self, slot: int, token_id: int) -> None:
        """The sequence of a slot was given this token."""
        self._runner.observe(slot, token_id)

    def execute(self, plan: StepPlan, table: SlotTable, clock: StepClock) -> StepResult | None:
        """Compute the plan's tokens, and one new token for each sequence that it completes.

        None when it completes no sequence, so that there was nothing to sample.
        """
        inputs = self._buffers.fill(plan, table)
        prompts = find_prompts(plan)
        sequences, completes, rows = plan.sequences, plan.completes(), None
        if not all(completes):
            rows = [row for row, is_complete in enumerate(completes) if is_complete]
            sequences = [sequences[row] for row in rows]
        slots = [sequence.slot for sequence in sequences]
        order = StepOrder(inputs, slots, rows, [each for _, each in prompts])
        clock.lap(StepPhase.INPUTS)
        output = self._runner.run(order, clock)
        for (sequence, _), scores in zip(prompts, output.scores, strict=True):
            keep_scores(sequence, scores)
        return None if output.sampled is None else StepResult(sequences, output.sampled)
