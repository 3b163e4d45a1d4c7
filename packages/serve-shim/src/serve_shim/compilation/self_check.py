"""Owns the comparison of a compiled forward pass with the eager one before the server is ready."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from serve_shim.engine.config import EngineConfig
from serve_shim.errors import ModelLoadError
from serve_shim.models.attention_step import AttentionStep

Forward = Callable[[Tensor, Tensor, AttentionStep], Tensor]

# Of the largest element; kernels that fuse round less often than ops one by one.
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.05}
_MOST_TOKENS = 64


def check_against_eager(
    eager: Forward, compiled: Forward, bounds: EngineConfig, sizes: Iterable[int]
) -> float:
    """Compare hidden states of prompts of these lengths, as far as one step can hold them.

    Writes to the first blocks of the KV cache, which nobody uses yet. Returns the largest
    difference, relative to the largest element. Raises `ModelLoadError` where it is too large.
    """
    longest = min(_MOST_TOKENS, bounds.max_step_tokens, bounds.max_model_len)
    worst = 0.0
    for size in sorted({min(size, longest) for size in sizes}):
        arguments = prompt_step(size, bounds)
        with torch.inference_mode():
            wanted, found = eager(*arguments).float(), compiled(*arguments)
        scale = wanted.abs().max().clamp_min(1e-6)
        difference = float((found.float() - wanted).abs().max() / scale)
        tolerance = _TOLERANCES.get(found.dtype, 1e-4)
        if not difference <= tolerance:
            raise ModelLoadError(
                f"the compiled model differs from the eager one by {difference:.2g} of its largest "
                f"output for {size} tokens, more than {tolerance:g}. Find the pass with "
                "`--pass-limit`, or run it with `--enforce-eager`."
            )
        worst = max(worst, difference)
    return worst


def prompt_step(size: int, bounds: EngineConfig) -> tuple[Tensor, Tensor, AttentionStep]:
    """Arguments of a forward pass over one prompt of so many tokens, in the first blocks."""
    positions = torch.arange(size)
    step = AttentionStep(
        block_table=torch.arange(bounds.max_blocks_per_sequence, dtype=torch.int32)[None],
        seq_lens=torch.tensor([size], dtype=torch.int32),
        query_start_loc=torch.tensor([0, size], dtype=torch.int32),
        slot_mapping=positions.clone(),
    )
    return positions.clone(), positions, step
