"""Owns a GGUF file as a checkpoint: tensor names, order of q and k rows; refuses other layouts."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from serve_shim.loading.checkpoint import GenerationDefaults, StoredFormat, with_biases
from serve_shim.loading.gguf_config import (
    FREQUENCY_TENSOR,
    read_gguf_config,
    read_gguf_family,
)
from serve_shim.loading.gguf_file import GgufFile, GgufTensor
from serve_shim.loading.gguf_integers import SPLITS
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.weight_form import DENSE, WeightForm
from serve_shim.models.weight_slots import WeightSlot
from serve_shim.tokenization.gguf_tokenizer import gguf_tokenizer
from serve_shim.tokenization.tokenizer import Tokenizer

# Below torch's grain of 32768, so that each step runs in this thread and stays in its cache:
# waking other threads for so little costs more than the step, and far more on a busy machine.
_CHUNK_VALUES = (1 << 15) - 1
_BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufCheckpoint:
    """Implements `Checkpoint` over one memory-mapped GGUF file."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        family = read_gguf_family(self._file)
        self._pairs_neighbours = family.gguf_pairs_neighbours
        self._tensors = {
            _hugging_face_name(name): tensor
            for name, tensor in self._file.tensors.items()
            if name != FREQUENCY_TENSOR
        }
        self._config = with_biases(read_gguf_config(self._file, family), self._tensors)
        self._scratch = torch.empty(0)

    @property
    def config(self) -> ModelConfig:
        """The model's facts from the metadata."""
        return self._config

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes by Hugging Face name."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def stored_format(self, name: str) -> StoredFormat:
        """The block format of the tensor, and the forms that its blocks can be kept in."""
        stored = self._tensors[name].format
        return StoredFormat(stored.name, stored.is_quantised, tuple(SPLITS.get(stored.name, {})))

    def read_into(self, slot: WeightSlot, form: WeightForm, out: Sequence[Tensor]) -> None:
        """Convert the tensor piece by piece and put q and k rows in order."""
        tensor = self._tensors[slot.name]
        if slot.head_rows is None or not self._pairs_neighbours:
            rows = [each.view(tensor.num_rows, 1, -1) for each in out]
            self._copy_rows(tensor, form, 0, rows)
        elif len(slot.shape) == 1:
            self._copy_paired_vector(tensor, slot.head_rows, out[0])
        else:
            self._copy_paired_rows(tensor, form, slot.head_rows, out)

    def tokenizer(self) -> Tokenizer | None:
        """Build the tokenizer in the metadata; None where there is none."""
        return gguf_tokenizer(self._file.metadata)

    def generation_defaults(self) -> GenerationDefaults:
        """Return the end-of-sequence ids; GGUF holds no sampling defaults."""
        return GenerationDefaults(eos_ids=self._config.eos_token_ids)

    def _copy_paired_rows(
        self, tensor: GgufTensor, form: WeightForm, head_rows: int, out: Sequence[Tensor]
    ) -> None:
        for first in range(0, tensor.num_rows, head_rows):
            heads = [each[first : first + head_rows] for each in out]
            pairs = [head.view(2, head_rows // 2, -1).transpose(0, 1) for head in heads]
            self._copy_rows(tensor, form, first, pairs)

    def _copy_rows(
        self, tensor: GgufTensor, form: WeightForm, first: int, out: Sequence[Tensor]
    ) -> None:
        """Fill each of `out` [num_groups, rows_of_a_group, width] with rows from `first` on."""
        num_groups, size = out[0].shape[:2]
        step = max(_CHUNK_VALUES // (size * tensor.shape[-1]), 1)
        for start in range(0, num_groups, step):
            pieces = [groups[start : start + step] for groups in out]
            begin = first + start * size
            rows = self._convert(tensor, form, begin, begin + len(pieces[0]) * size)
            for piece, values in zip(pieces, rows, strict=True):
                piece.copy_(values.view(piece.shape))

    def _convert(
        self, tensor: GgufTensor, form: WeightForm, start: int, stop: int
    ) -> Sequence[Tensor]:
        """Rows `start` to `stop` as the tensors of `form`, contiguous."""
        if form == DENSE:
            values = self._buffer((stop - start) * tensor.shape[-1])
            self._file.read_rows(tensor, start, stop, values)
            return [values]
        blocks = self._file.read_blocks(tensor, start, stop).numpy()
        split = SPLITS[tensor.format.name][form]
        return [torch.from_numpy(np.ascontiguousarray(part)) for part in split(blocks)]

    def _copy_paired_vector(self, tensor: GgufTensor, head_rows: int, out: Tensor) -> None:
        values = self._buffer(out.numel()).view(1, -1)
        self._file.read_rows(tensor, 0, 1, values)
        pairs = values.view(-1, head_rows // 2, 2)
        out.view(-1, 2, head_rows // 2).copy_(pairs.transpose(1, 2))

    def _buffer(self, num_values: int) -> Tensor:
        if self._scratch.numel() < num_values:
            self._scratch = torch.empty(num_values)
        return self._scratch[:num_values]


def _hugging_face_name(name: str) -> str:
    match = _BLOCK.fullmatch(name)
    if match is None:
        return _TOP.get(name, name)
    layer, part, kind = match.groups()
    return f"model.layers.{layer}.{_PARTS[part]}.{kind}" if part in _PARTS else name
