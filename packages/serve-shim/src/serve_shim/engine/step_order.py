"""Owns what one step asks of a worker and gets back, as plain data that a process can be sent."""

from typing import NamedTuple

from serve_shim.engine.output import TokenLogprobs
from serve_shim.engine.step_memory import StepInputs
from serve_shim.sampling.params import SamplingParams
from serve_shim.sampling.sampler import Sampled


class SlotAssignment(NamedTuple):
    """A slot gets a new owner; `output_ids` are those from before a pre-emption."""

    slot: int
    params: SamplingParams
    key: int
    stop_ids: frozenset[int]
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


class PromptRows(NamedTuple):
    """Rows of a step, from `first_row` on, each of which scores one prompt token of `targets`."""

    first_row: int
    targets: tuple[int, ...]
    num_top: int


class StepOrder(NamedTuple):
    """One step: `inputs` for the model, then a token for each slot of `slots`.

    `rows` are the places of these slots' sequences among the step's, None where it is all of them.
    """

    inputs: StepInputs
    slots: list[int]
    rows: list[int] | None
    prompts: list[PromptRows]


class StepOutput(NamedTuple):
    """The tokens, None where nobody got one, and the scores of each of the order's `prompts`."""

    sampled: Sampled | None
    scores: list[list[TokenLogprobs]]
