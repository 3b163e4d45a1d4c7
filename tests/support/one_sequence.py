"""One sequence through a model's paged cache, in chunks of any length, blocks in shuffled order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from serve_shim.models import AttentionStep, CausalLM

_BLOCK_SIZE = 8


class OneSequence:
    """Binds a fresh cache to `model`; each `step` feeds the next tokens."""

    def __init__(self, model: CausalLM, num_blocks: int = 32) -> None:
        self._model = model
        self._length = 0
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5))
        self._blocks = order.to(torch.int32)
        config = model.local_config
        shape = (num_blocks, 2, config.num_kv_heads, _BLOCK_SIZE, config.head_dim)
        model.bind_kv_cache([torch.zeros(shape, dtype=model.dtype) for _ in model.layers])

    def step(self, ids: Sequence[int]) -> Tensor:
        """Return logits [len(ids), vocab] of the positions of `ids`."""
        positions = torch.arange(self._length, self._length + len(ids))
        self._length += len(ids)
        slots = self._blocks[positions // _BLOCK_SIZE].long() * _BLOCK_SIZE
        step = AttentionStep(
            block_table=self._blocks[None],
            seq_lens=torch.tensor([self._length], dtype=torch.int32),
            query_start_loc=torch.tensor([0, len(ids)], dtype=torch.int32),
            slot_mapping=slots + positions % _BLOCK_SIZE,
        )
        with torch.inference_mode():
            hidden = self._model(torch.tensor(ids), positions, step)
            return self._model.compute_logits(hidden)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return `count` tokens, each the most likely after those before it."""
        tokens: list[int] = []
        logits = self.step(prompt)
        for _ in range(count):
            tokens.append(int(logits[-1].argmax()))
            logits = self.step(tokens[-1:])
        return tokens
