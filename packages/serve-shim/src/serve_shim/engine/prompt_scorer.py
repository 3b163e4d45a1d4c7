"""Owns logprobs of prompt tokens, computed as a prompt is prefilled; refuses to sample."""

from collections.abc import Iterable

import torch

from serve_shim.engine.language_model import LanguageModel
from serve_shim.engine.output import TokenLogprobs
from serve_shim.engine.request import Sequence
from serve_shim.engine.step_order import PromptRows
from serve_shim.engine.step_plan import StepPlan
from serve_shim.sampling.logprobs import token_logprobs

_ROWS_AT_ONCE = 64
"""Rows of logits that exist at the same time: 64 x 150,000 float32 are 38 MB."""


def find_prompts(plan: StepPlan) -> list[tuple[Sequence, PromptRows]]:
    """The sequences of a step whose prompts it scores, and where.

    The state after a prompt token scores the one after it. Tokens that were scored already, before
    a pre-emption, are skipped; the last row scores no prompt token.
    """
    found: list[tuple[Sequence, PromptRows]] = []
    row = 0
    for sequence, length in zip(plan.sequences, plan.lengths, strict=True):
        if sequence.scores_prompt:
            found.append((sequence, _rows(sequence, row, length)))
        row += length
    return found


def score_prompt(
    model: LanguageModel, hidden: torch.Tensor, prompt: PromptRows
) -> list[TokenLogprobs]:
    """What the states `hidden` [T, hidden] of a whole step tell of one prompt."""
    entries: list[TokenLogprobs] = []
    for first in range(0, len(prompt.targets), _ROWS_AT_ONCE):
        targets = prompt.targets[first : first + _ROWS_AT_ONCE]
        row = prompt.first_row + first
        logits = model.compute_logits(hidden[row : row + len(targets)]).float().numpy()
        entries.extend(token_logprobs(logits, targets, [prompt.num_top] * len(targets)))
    return entries


def keep_scores(sequence: Sequence, scores: Iterable[TokenLogprobs]) -> None:
    """Append a step's scores to those that the request has; its first token has none."""
    request = sequence.request
    if request.prompt_logprobs is None:
        request.prompt_logprobs = [None]
    request.prompt_logprobs.extend(scores)


def _rows(sequence: Sequence, row: int, length: int) -> PromptRows:
    request, start = sequence.request, sequence.num_computed
    num_scored = len(request.prompt_logprobs or [None])
    first = max(start, num_scored - 1)
    end = max(first, min(start + length, len(request.prompt_ids) - 1))
    targets = request.prompt_ids[first + 1 : end + 1]
    return PromptRows(row + first - start, targets, request.params.prompt_logprobs or 0)
