"""Owns logprobs of prompt tokens, computed as a prompt is prefilled; refuses to sample."""

import torch

from serve_shim.engine.language_model import LanguageModel
from serve_shim.engine.request import Request
from serve_shim.sampling.logprobs import token_logprobs

_ROWS_AT_ONCE = 64
"""Rows of logits that exist at the same time: 64 x 150,000 float32 are 38 MB."""


def score_prompt(model: LanguageModel, hidden: torch.Tensor, request: Request, start: int) -> None:
    """Append to `request.prompt_logprobs` what `hidden` [T, hidden] tells of the prompt.

    Row i is the state after prompt token `start + i` and so scores the one after it. Tokens that
    were scored already (before a pre-emption) are skipped; the last row scores no prompt token.
    """
    entries = request.prompt_logprobs
    if entries is None:
        entries = request.prompt_logprobs = [None]
    num_top = request.params.prompt_logprobs or 0
    end = min(start + len(hidden), len(request.prompt_ids) - 1)
    for first in range(max(start, len(entries) - 1), end, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, end)
        logits = model.compute_logits(hidden[first - start : last - start]).float().numpy()
        targets = request.prompt_ids[first + 1 : last + 1]
        entries.extend(token_logprobs(logits, targets, [num_top] * len(targets)))
