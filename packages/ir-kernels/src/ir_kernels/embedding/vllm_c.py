"""`embedding` in C++, rows gathered out of panels: csrc/embedding.inc."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`, which reads layout `panel16` only: native serves plain tables."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        layouts=("panel16",),
        batch_invariant=True,
    )(embedding)


def supports_args(input_ids: Tensor, weight: Tensor, layout: str = "plain") -> bool | str:
    """int64 ids and a float table, on the CPU."""
    return arguments.token_ids(input_ids) or arguments.activation(weight, "cpu") or True


def embedding(input_ids: Tensor, weight: Tensor, layout: str = "plain") -> Tensor:
    """An id that is no row is a RuntimeError that names it."""
    return kernels.embedding_panels.default(input_ids, weight)
