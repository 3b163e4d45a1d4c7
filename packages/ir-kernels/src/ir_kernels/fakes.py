"""What the library's ops return, as metadata only. Keeps step with csrc/binding.cpp."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """A contiguous tensor like `x`."""
    return x.new_empty(x.shape)


def silu_and_mul(x: Tensor) -> Tensor:
    """A contiguous tensor like half of `x`."""
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def nothing(*_: Any) -> None:
    """The op only writes into its arguments."""


FAKES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "rms_norm": rms_norm,
        "fused_add_rms_norm": nothing,
        "silu_and_mul": silu_and_mul,
        "rotary_embedding": nothing,
    }
)
