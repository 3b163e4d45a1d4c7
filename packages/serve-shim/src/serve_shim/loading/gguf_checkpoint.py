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
from serve_shim.models.span import Span
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
        """Convert the part piece by piece and put q and k rows in order."""
        tensor = self._tensors[slot.name]
        *dims, columns = slot.spans
        first = dims[0].start if dims else 0
        if slot.head_rows is None or not self._pairs_neighbours:
            rows = [each.view(dims[0].length if dims else 1, 1, -1) for each in out]
            self._copy_rows(tensor, form, first, columns, rows)
        elif not dims:
            self._copy_paired_vector(tensor, slot.head_rows, columns, out[0])
        else:
            self._copy_paired_rows(tensor, form, slot.head_rows, slot.spans, out)

    @property
    def bytes_read(self) -> int:
        """Bytes of the blocks that were converted, factors of rotary frequencies included."""
        return self._file.bytes_read

    def tokenizer(self) -> Tokenizer | None:
        """Build the tokenizer in the metadata; None where there is none."""
        return gguf_tokenizer(self._file.metadata)

    def generation_defaults(self) -> GenerationDefaults:
        """Return the end-of-sequence ids; GGUF holds no sampling defaults."""
        return GenerationDefaults(eos_ids=self._config.eos_token_ids)

    def _copy_paired_rows(
        self,
        tensor: GgufTensor,
        form: WeightForm,
        head_rows: int,
        part: tuple[Span, ...],
        out: Sequence[Tensor],
    ) -> None:
        rows, columns = part
        for start in range(0, rows.length, head_rows):
            heads = [each[start : start + head_rows] for each in out]
            pairs = [head.view(2, head_rows // 2, -1).transpose(0, 1) for head in heads]
            self._copy_rows(tensor, form, rows.start + start, columns, pairs)

    def _copy_rows(
        self, tensor: GgufTensor, form: WeightForm, first: int, columns: Span, out: Sequence[Tensor]
    ) -> None:
        """Fill each of `out` [num_groups, rows_of_a_group, width] with rows from `first` on."""
        num_groups, size = out[0].shape[:2]
        step = max(_CHUNK_VALUES // (size * columns.length), 1)
        for start in range(0, num_groups, step):
            pieces = [groups[start : start + step] for groups in out]
            begin = first + start * size
            rows = self._convert(tensor, form, begin, begin + len(pieces[0]) * size, columns)
            for piece, values in zip(pieces, rows, strict=True):
                piece.copy_(values.view(piece.shape))

    def _convert(
        self, tensor: GgufTensor, form: WeightForm, start: int, stop: int, columns: Span
    ) -> Sequence[Tensor]:
        """Columns of rows `start` to `stop` as the tensors of `form`; rows follow each other."""
        if form == DENSE:
            return [self._expand(tensor, start, stop, columns)]
        size = tensor.format.values
        held = slice(columns.start // size, columns.stop // size)
        blocks = self._file.read_blocks(tensor, start, stop, held).numpy()
        split = SPLITS[tensor.format.name][form]
        return [torch.from_numpy(np.ascontiguousarray(part)) for part in split(blocks)]

    def _expand(self, tensor: GgufTensor, start: int, stop: int, columns: Span) -> Tensor:
        """Columns of rows `start` to `stop` in float32, out of the blocks that hold them."""
        size = tensor.format.values
        held = slice(columns.start // size, -(-columns.stop // size))
        blocks = self._file.read_blocks(tensor, start, stop, held)
        values = self._buffer(len(blocks) * size)
        tensor.format.expand(blocks, values.view(-1, size))
        skipped = columns.start - held.start * size
        return values.view(stop - start, -1)[:, skipped : skipped + columns.length]

    def _copy_paired_vector(
        self, tensor: GgufTensor, head_rows: int, columns: Span, out: Tensor
    ) -> None:
        pairs = self._expand(tensor, 0, 1, columns).reshape(-1, head_rows // 2, 2)
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
