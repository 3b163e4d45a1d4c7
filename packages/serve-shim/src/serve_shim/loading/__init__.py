"""Finding a checkpoint, checking it and loading it into a model; safetensors and GGUF only."""

from serve_shim.loading.checkpoint import GenerationDefaults
from serve_shim.loading.load_model import (
    LoadedModel,
    ModelDescription,
    describe_model,
    load_model,
    open_checkpoint,
)
from serve_shim.loading.load_report import describe_weights
from serve_shim.loading.source import ModelSource, resolve_source

__all__ = [
    "GenerationDefaults",
    "LoadedModel",
    "ModelDescription",
    "ModelSource",
    "describe_model",
    "describe_weights",
    "load_model",
    "open_checkpoint",
    "resolve_source",
]
