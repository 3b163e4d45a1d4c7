"""Owns loading a model from its name to weights in place; refuses dtypes it cannot compute in."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from serve_shim.errors import ModelLoadError, TokenizerError
from serve_shim.loading.checkpoint import Checkpoint, GenerationDefaults
from serve_shim.loading.gguf_checkpoint import GgufCheckpoint
from serve_shim.loading.load_report import report_weights
from serve_shim.loading.quantization import choose_forms, is_quantised
from serve_shim.loading.rank_bits import check_rank_bits
from serve_shim.loading.safetensors_checkpoint import SafetensorsCheckpoint
from serve_shim.loading.source import ModelSource, resolve_source
from serve_shim.loading.weights import Progress, check_tensors, load_weights
from serve_shim.models.causal_lm import CausalLM
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.shard import WHOLE, Shard
from serve_shim.models.weight_memory import WeightMemory
from serve_shim.models.weight_slots import separate_head_slot, weight_slots
from serve_shim.tokenization.hf_tokenizer import hf_tokenizer
from serve_shim.tokenization.tokenizer import Tokenizer

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What an engine must know of a model whose weights are elsewhere; see `LoadedModel`."""

    config: ModelConfig
    tokenizer: Tokenizer | None
    generation: GenerationDefaults
    source: ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready for a KV cache, with what belongs to it.

    `config` is the whole model's, also where `model` is one rank's part of it. `tokenizer` is None
    for a checkpoint without tokenizer files, which serves token ids only.
    `load_report` holds what was chosen for the weights and why, `tensors`, `bytes` and seconds per
    stage, for the log.
    """

    model: CausalLM
    config: ModelConfig
    tokenizer: Tokenizer | None
    generation: GenerationDefaults
    source: str
    name: str
    load_report: dict[str, object]


def load_model(
    spec: ModelSource | str | None,
    *,
    dtype: torch.dtype | Literal["auto"] = "auto",
    quantization: str = "auto",
    revision: str | None = None,
    tokenizer: str | None = None,
    chat_template: str | None = None,
    device: torch.device | None = None,
    max_positions: int | None = None,
    shard: Shard = WHOLE,
    has_text: bool = True,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load `spec`: a name for `resolve_source`, None for the embedded default, or its result.

    `dtype` "auto" is the checkpoint's, bfloat16 for quantised files. `quantization` "auto" keeps
    4-bit and 8-bit weights as they are stored where `dtype` has 16 bits; "none" expands them.
    `tokenizer` is a directory or GGUF file to take the tokenizer from instead; `chat_template`, a
    text or the file that holds it, replaces its template.
    `max_positions` bounds the rotary cache where the engine serves fewer than the model has.
    `shard` loads one rank's part of the model, and reads no other. Without `has_text` the tokenizer
    is left out.
    Raises `ModelLoadError` or `TokenizerError`.
    """
    started = time.perf_counter()
    source = spec if isinstance(spec, ModelSource) else resolve_source(spec, revision)
    checkpoint = open_checkpoint(source.path)
    slots = check_tensors(checkpoint, str(source.path))
    opened = time.perf_counter()
    dtype, dtype_reason = _choose_dtype(dtype, checkpoint.config, is_quantised(slots, checkpoint))
    choice = choose_forms(quantization, dtype, slots, checkpoint)
    memory = WeightMemory(device)
    with torch.inference_mode(False):
        model = CausalLM(
            checkpoint.config,
            dtype=dtype,
            memory=memory,
            forms=choice.forms,
            max_positions=max_positions,
            shard=shard,
        )
        slots = list(weight_slots(model.plan))
        if checkpoint.config.tie_word_embeddings and "lm_head" in choice.forms:
            slots.append(separate_head_slot(model.plan))
        layouts = load_weights(model, slots, checkpoint, progress)
    if model.plan.whole_sums:
        check_rank_bits(shard.size, dtype, layouts)
    loaded = time.perf_counter()
    text = _choose_tokenizer(checkpoint, tokenizer, chat_template) if has_text else None
    finished = time.perf_counter()
    return LoadedModel(
        model=model.eval(),
        config=checkpoint.config,
        tokenizer=text,
        generation=_with_tokenizer_eos(checkpoint, text),
        source=str(source.path),
        name=source.name,
        load_report={
            "origin": source.origin,
            "revision": source.revision,
            "rank": shard.rank,
            "num_ranks": shard.size,
            **report_weights(dtype, dtype_reason, quantization, choice, layouts),
            "tensors": len(slots),
            "bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
            "huge_page_bytes": memory.huge_bytes(),
            "bytes_read": checkpoint.bytes_read,
            "open_s": opened - started,
            "weights_s": loaded - opened,
            "tokenizer_s": finished - loaded,
        },
    )


def describe_model(
    spec: str | None,
    *,
    revision: str | None = None,
    tokenizer: str | None = None,
    chat_template: str | None = None,
) -> ModelDescription:
    """Read all of a model but its weights; arguments and errors are those of `load_model`."""
    source = resolve_source(spec, revision)
    checkpoint = open_checkpoint(source.path)
    text = _choose_tokenizer(checkpoint, tokenizer, chat_template)
    return ModelDescription(
        config=checkpoint.config,
        tokenizer=text,
        generation=_with_tokenizer_eos(checkpoint, text),
        source=source,
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory; reads headers only."""
    return SafetensorsCheckpoint(path) if path.is_dir() else GgufCheckpoint(path)


def _choose_dtype(
    dtype: torch.dtype | Literal["auto"], config: ModelConfig, is_from_integers: bool
) -> tuple[torch.dtype, str]:
    """The dtype of the activations, and why it is that."""
    if dtype == "auto":
        if config.checkpoint_dtype is None:
            return torch.bfloat16, "auto: the checkpoint names none"
        why = "the checkpoint is quantised" if is_from_integers else "the checkpoint's"
        return config.checkpoint_dtype, f"auto: {why}"
    if dtype not in _DTYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in _DTYPES)
        raise ModelLoadError(f"dtype `{dtype}` is not supported; supported: auto, {names}")
    return dtype, "asked for"


def _choose_tokenizer(
    checkpoint: Checkpoint, other: str | None, chat_template: str | None
) -> Tokenizer | None:
    tokenizer = checkpoint.tokenizer() if other is None else _tokenizer_of(Path(other))
    if chat_template is None:
        return tokenizer
    if tokenizer is None:
        raise TokenizerError("a chat template was given, but the model has no tokenizer")
    return tokenizer.with_chat_template(_template_text(chat_template))


def _template_text(given: str) -> str:
    """Return the template: `given` itself where it has Jinja's braces, else the file it names."""
    if "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"chat template `{given[:200]}` is no file that can be read, nor a template: {error}"
        ) from error


def _tokenizer_of(path: Path) -> Tokenizer:
    path = path.expanduser()
    if path.is_dir():
        tokenizer = hf_tokenizer(path)
    elif path.is_file():
        tokenizer = GgufCheckpoint(path).tokenizer()
    else:
        raise TokenizerError(f"tokenizer `{path}`: no such directory or GGUF file")
    if tokenizer is None:
        raise TokenizerError(f"tokenizer `{path}`: no tokenizer.json there")
    return tokenizer


def _with_tokenizer_eos(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> GenerationDefaults:
    """The defaults with the tokenizer's end-of-sequence ids added.

    A fine-tune often changes the tokenizer's end of turn and leaves the base model's id in its
    configuration. Ids that the model cannot produce are left out.
    """
    generation = checkpoint.generation_defaults()
    ids = dict.fromkeys((*generation.eos_ids, *(tokenizer.eos_ids if tokenizer else ())))
    known = tuple(token_id for token_id in ids if token_id < checkpoint.config.vocab_size)
    return replace(generation, eos_ids=known)
