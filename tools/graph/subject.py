"""A traced model: loaded as a server loads it, with the example that a server compiles it for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import ir_core as ir
from ir_passes.compiling.recipe import Recipe
from ir_passes.config import CompilationConfig, DynamicShapesConfig, DynamicShapesType
from ir_passes.tracing.model_trace import ModelTrace, trace_call
from serve_shim.compilation.compilable_model import DYNAMIC_DIMS, example_arguments
from serve_shim.engine.kv_cache import allocate_caches
from serve_shim.engine.parts import cache_layout
from serve_shim.errors import SettingsError
from serve_shim.loading import load_model

_BLOCK_SIZE, _NUM_BLOCKS = 16, 8


@dataclass(frozen=True, slots=True)
class Subject:
    """What the story is about.

    Attributes:
        name: the model's.
        num_layers: how many it has.
        dtype: of its activations.
        shapes: how token counts were traced.
        recipe: passes, backend and dialect.
        trace: the whole model, before any pass.
    """

    name: str
    num_layers: int
    dtype: torch.dtype
    shapes: DynamicShapesType
    recipe: Recipe
    trace: ModelTrace

    @classmethod
    def load(
        cls, model: str | None, dtype: str, backend: str, shapes: DynamicShapesType
    ) -> Subject:
        """Load and trace a model; raises what either raises, and for an unknown backend."""
        config = CompilationConfig(
            backend=backend, dynamic_shapes_config=DynamicShapesConfig(type=shapes)
        )
        ir.load_plugins()
        ir.set_execution_mode("inductor" if backend == "inductor" else "eager")
        recipe = Recipe.of(config)
        loaded = load_model(model, dtype="auto" if dtype == "auto" else getattr(torch, dtype))
        layout = cache_layout(loaded.config, _BLOCK_SIZE, loaded.model.dtype)
        loaded.model.bind_kv_cache(allocate_caches(layout, _NUM_BLOCKS))
        trace = trace_call(
            loaded.model,
            example_arguments(_NUM_BLOCKS),
            dynamic_dims=DYNAMIC_DIMS,
            shapes=shapes,
            dialect=recipe.dialect,
        )
        num_layers = loaded.config.num_layers
        return cls(loaded.name, num_layers, loaded.model.dtype, shapes, recipe, trace)

    def check_layer(self, layer: int) -> None:
        """Raises SettingsError for a layer that the model has not."""
        if not 0 <= layer < self.num_layers:
            raise SettingsError(
                f"`{self.name}` has no layer {layer}; its {self.num_layers} layers are counted "
                f"from 0 to {self.num_layers - 1}"
            )
