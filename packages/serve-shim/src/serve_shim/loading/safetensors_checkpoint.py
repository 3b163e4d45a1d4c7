"""Owns a Hugging Face directory as a checkpoint; refuses pickles, remote code and stray paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from serve_shim.errors import ModelLoadError
from serve_shim.loading.checkpoint import GenerationDefaults, StoredFormat, with_biases
from serve_shim.loading.compressed_config import read_schemes, without_quantization
from serve_shim.loading.compressed_tensors import CompressedTensors
from serve_shim.loading.hf_config import read_hf_config
from serve_shim.loading.safetensors_header import (
    FLOAT_BYTES,
    INTEGER_BYTES,
    StoredTensor,
    read_safetensors_header,
)
from serve_shim.models.fields import Fields
from serve_shim.models.json_file import read_json_object
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.weight_form import WeightForm
from serve_shim.models.weight_slots import WeightSlot
from serve_shim.tokenization.hf_tokenizer import hf_tokenizer
from serve_shim.tokenization.tokenizer import Tokenizer

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_BUFFERS = (".rotary_emb.inv_freq", ".attn.masked_bias")


class SafetensorsCheckpoint:
    """Implements `Checkpoint` over a directory with config.json and safetensors weights."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        config_path = directory / "config.json"
        if not config_path.is_file():
            raise ModelLoadError(_no_config(directory))
        fields = read_json_object(config_path)
        schemes = read_schemes(fields)
        config = read_hf_config(without_quantization(fields) if schemes else fields)
        element_bytes = {**FLOAT_BYTES, **INTEGER_BYTES} if schemes else FLOAT_BYTES
        self._tensors = {
            name: tensor
            for name, tensor in _find_tensors(directory, element_bytes).items()
            if not name.endswith(_BUFFERS)
            and not (name == "lm_head.weight" and config.tie_word_embeddings)
        }
        self._compressed = (
            CompressedTensors(schemes, self._tensors, self._read, str(directory))
            if schemes
            else None
        )
        self._config = with_biases(config, self._tensors)
        self._files: dict[Path, safe_open] = {}
        self._bytes_read = 0

    @property
    def config(self) -> ModelConfig:
        """The model's facts from config.json and the tensors' names."""
        return self._config

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes from the headers; of a quantised weight, that of its values."""
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        if self._compressed is None:
            return shapes
        parts = self._compressed.parts
        plain = {name: shape for name, shape in shapes.items() if name not in parts}
        return {**plain, **self._compressed.shapes}

    def stored_format(self, name: str) -> StoredFormat:
        """The tensor's dtype, or the scheme that it is quantised by."""
        if self._compressed is not None and name in self._compressed.shapes:
            return self._compressed.stored_format(name)
        return StoredFormat(self._tensors[name].dtype)

    def read_into(self, slot: WeightSlot, form: WeightForm, out: Sequence[Tensor]) -> None:
        """Copy the part from its memory-mapped file, converted where it is quantised."""
        if self._compressed is not None and slot.name in self._compressed.shapes:
            self._compressed.read_into(slot, form, out)
            return
        part = tuple(slice(span.start, span.stop) for span in slot.spans)
        out[0].copy_(self._read(slot.name, part))

    def _read(self, name: str, part: tuple[slice, ...]) -> Tensor:
        file = self._tensors[name].file
        try:
            if file not in self._files:
                self._files[file] = safe_open(file, framework="pt")
            stored: Tensor = self._files[file].get_slice(name)[part]
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{file}: tensor `{name}`: {error}") from error
        self._bytes_read += stored.nbytes
        return stored

    @property
    def bytes_read(self) -> int:
        """Bytes of the parts that were copied."""
        return self._bytes_read

    def tokenizer(self) -> Tokenizer | None:
        """Build the tokenizer from the directory's files; None where there are none."""
        return hf_tokenizer(self._directory)

    def generation_defaults(self) -> GenerationDefaults:
        """Read generation_config.json; the end-of-sequence ids fall back on config.json."""
        path = self._directory / "generation_config.json"
        if not path.is_file():
            return GenerationDefaults(eos_ids=self._config.eos_token_ids)
        return _read_generation(read_json_object(path), self._config)


def _no_config(directory: Path) -> str:
    files = sorted(path.name for path in directory.glob("*.gguf"))
    if files:
        return f"{directory}: no config.json, but GGUF files; give one of them: {files[:5]}"
    return f"{directory}: no config.json; expected a Hugging Face model directory"


def _find_tensors(directory: Path, element_bytes: Mapping[str, int]) -> dict[str, StoredTensor]:
    index = directory / _INDEX
    if index.is_file():
        return _read_shards(directory, read_json_object(index), element_bytes)
    single = directory / _SINGLE
    if single.is_file():
        return read_safetensors_header(single, element_bytes)
    pickles = sorted(path.name for path in directory.glob("*.bin"))
    if pickles:
        raise ModelLoadError(
            f"{directory}: only pickled weights ({', '.join(pickles[:3])}), which can run code "
            "and are never loaded; convert them to safetensors"
        )
    raise ModelLoadError(f"{directory}: neither {_SINGLE} nor {_INDEX}; no weights to load")


def _read_shards(
    directory: Path, index: Fields, element_bytes: Mapping[str, int]
) -> dict[str, StoredTensor]:
    wanted = index.section("weight_map").values
    tensors: dict[str, StoredTensor] = {}
    for name in sorted({str(file) for file in wanted.values()}):
        if Path(name).name != name or not (directory / name).is_file():
            raise ModelLoadError(f"{index.where}: shard `{name[:200]}` is not in {directory}")
        shard = read_safetensors_header(directory / name, element_bytes)
        if repeated := sorted(shard.keys() & tensors):
            raise ModelLoadError(
                f"{index.where}: tensor `{repeated[0]}` is in `{tensors[repeated[0]].file.name}` "
                f"and in `{name}` ({len(repeated)} such tensors)"
            )
        tensors.update(shard)
    misplaced = [
        tensor
        for tensor, file in wanted.items()
        if tensor not in tensors or tensors[tensor].file.name != file
    ]
    if misplaced:
        raise ModelLoadError(
            f"{index.where}: lists `{misplaced[0]}` in `{wanted[misplaced[0]]}`, which does not "
            f"hold it ({len(misplaced)} such tensors)"
        )
    return tensors


def _read_generation(fields: Fields, config: ModelConfig) -> GenerationDefaults:
    def number(key: str, above: float) -> float | None:
        return fields.number(key, above=above) if fields.has(key) else None

    return GenerationDefaults(
        eos_ids=fields.integers("eos_token_id", config.eos_token_ids),
        temperature=number("temperature", -1e-9),
        top_p=number("top_p", 0.0),
        top_k=fields.integer("top_k", minimum=-1) if fields.has("top_k") else None,
        min_p=number("min_p", -1e-9),
        repetition_penalty=number("repetition_penalty", 0.0),
    )
