"""`sample_tokens` in C++: csrc/sampling.inc."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        batch_invariant=True,
    )(sample_tokens)


def supports_args(
    x: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    key: Tensor,
    position: Tensor,
) -> bool | str:
    """Any layout."""
    return arguments.activation(x, "cpu") or True


def sample_tokens(
    x: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    key: Tensor,
    position: Tensor,
) -> Tensor:
    """A few passes over a row that stays in the cache; nothing is sorted and no weight is kept."""
    return kernels.sample_tokens.default(x, temperature, min_p, top_k, top_p, key, position)
