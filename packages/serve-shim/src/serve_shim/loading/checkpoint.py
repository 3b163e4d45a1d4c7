"""Owns what a checkpoint of any format offers the loader; refuses to know a format."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from serve_shim.models.model_config import ModelConfig
from serve_shim.models.weight_form import WeightForm
from serve_shim.models.weight_slots import WeightSlot
from serve_shim.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """What the checkpoint asks for when a request does not; None where it says nothing.

    `eos_ids` end a completion; they come from the generation file, the config and the tokenizer.
    """

    eos_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def sampling(self) -> dict[str, float | int]:
        """The sampling parameters it sets, by their names in `SamplingParams`."""
        named = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """How one tensor is stored: the format's own `name`, and the quantised forms, if any.

    `forms` hold the stored values exactly; the smallest comes first. A quantised format may have
    none.
    """

    name: str
    is_quantised: bool = False
    forms: tuple[WeightForm, ...] = ()


class Checkpoint(Protocol):
    """An opened checkpoint whose header was checked; weights are read on demand."""

    @property
    def config(self) -> ModelConfig:
        """The model's facts, biases included."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor under its Hugging Face name; tensors without a use are left out."""
        ...

    def stored_format(self, name: str) -> StoredFormat:
        """How the tensor of that Hugging Face name is stored."""
        ...

    def read_into(self, slot: WeightSlot, form: WeightForm, out: Sequence[Tensor]) -> None:
        """Fill `out`, the slot's part of each tensor of a matrix of `form`; no other part is read.

        A dense matrix has one, whose dtype is converted to; so has a vector. Other forms must be
        among the `stored_format`'s, and the part be whole groups of them.
        """
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes of weights that were read so far, as they are stored."""
        ...

    def tokenizer(self) -> Tokenizer | None:
        """Build the checkpoint's tokenizer; None where it has no tokenizer files."""
        ...

    def generation_defaults(self) -> GenerationDefaults:
        """Read the checkpoint's own sampling defaults."""
        ...


def with_biases(config: ModelConfig, names: Iterable[str]) -> ModelConfig:
    """Return `config` with the bias flags set for the biases that the tensors show.

    Flags that are already set stay set, so a bias that must be there is missed, not dropped.
    """
    found = {
        name.removeprefix("model.layers.0.") for name in names if name.startswith("model.layers.0.")
    }

    def has(*parts: str) -> bool:
        return any(f"{part}_proj.bias" in found for part in parts)

    return replace(
        config,
        qkv_bias=config.qkv_bias or has("self_attn.q", "self_attn.k", "self_attn.v"),
        output_bias=config.output_bias or has("self_attn.o"),
        mlp_bias=config.mlp_bias or has("mlp.gate", "mlp.up", "mlp.down"),
    )
