"""Owns what may differ between families of the shared decoder."""

from collections.abc import Callable
from dataclasses import dataclass

from serve_shim.models.fields import Fields


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """`size` keys are seen, the query's own included, in the layers marked in `layers`."""

    size: int
    layers: tuple[bool, ...]


WindowReader = Callable[[Fields, int], SlidingWindow | None]


def no_window(config: Fields, num_layers: int) -> SlidingWindow | None:
    """Return None: the family attends to every earlier token whatever the config says."""
    return None


def window_of_every_layer(config: Fields, num_layers: int) -> SlidingWindow | None:
    """Return `sliding_window` for all layers, None where it is null."""
    if not config.has("sliding_window"):
        return None
    return SlidingWindow(config.integer("sliding_window"), (True,) * num_layers)


def window_by_layer_type(config: Fields, num_layers: int) -> SlidingWindow | None:
    """Return the window of the layers named in `layer_types` or above `max_window_layers`."""
    if not config.boolean("use_sliding_window", False) or not config.has("sliding_window"):
        return None
    if config.has("layer_types"):
        layers = _sliding_layer_types(config, num_layers)
    else:
        first = config.integer("max_window_layers", minimum=0)
        layers = tuple(layer >= first for layer in range(num_layers))
    return SlidingWindow(config.integer("sliding_window"), layers) if any(layers) else None


def _sliding_layer_types(config: Fields, num_layers: int) -> tuple[bool, ...]:
    kinds = config.texts("layer_types")
    if len(kinds) != num_layers:
        raise config.error("layer_types", f"expected one entry for each of {num_layers} layers")
    return tuple(kind == "sliding_attention" for kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model family: its names in both formats and its fixed differences.

    `architecture` is the Hugging Face class, `gguf_architecture` the value in GGUF metadata
    (None where GGUF spells the family like another one). `gguf_pairs_neighbours`: GGUF stores
    the rows of q and k so that rotary pairs are neighbours. `qk_norm` and `qkv_bias` say that
    those tensors are always there; other biases are found by looking for them.
    """

    architecture: str
    gguf_architecture: str | None = None
    gguf_pairs_neighbours: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    default_head_dim: int | None = None
    sliding_window: WindowReader = no_window
