"""Owns the check that ranks of one model compute the bits of one rank; refuses to make them so.

Under batch invariance no sum is cut where a rank's part ends. What is left to an implementation is
that an output has the same bits whatever other outputs, or heads, the rank holds.
"""

from collections.abc import Iterable, Mapping

import torch

import ir_core as ir
from serve_shim.errors import ModelLoadError

_PROMISING: Mapping[str, str] = {
    "linear": "in_order",
    "linear_w8a8": "vllm_c",  # integers are summed exactly
    "paged_attention": "in_order",
}
"""By op, the provider of which an output depends on no other output."""


def check_rank_bits(
    num_ranks: int, dtype: torch.dtype, layouts: Mapping[str, ir.LayoutChoice]
) -> None:
    """Raise `ModelLoadError` where an implementation does not promise the bits of one rank.

    `layouts` holds what was chosen for each matrix, by its path, as for activations of `dtype`.
    """
    chosen = [each.selection for each in layouts.values()]
    attention = ir.ops.paged_attention
    chosen.append(attention.select(*attention.generate_inputs(num_tokens=1, dtype=dtype)))
    reasons = sorted(set(_reasons(chosen)))
    if reasons:
        raise ModelLoadError(
            f"batch invariance is on, and on {num_ranks} ranks this model would not have the bits "
            f"of one rank; serve it on one, or turn batch invariance off:\n  "
            + "\n  ".join(reasons)
        )


def _reasons(chosen: Iterable[ir.Selection]) -> Iterable[str]:
    for selection in chosen:
        name = selection.op.name
        wanted = _PROMISING.get(name, selection.provider if name.startswith("embedding") else "")
        if selection.provider == wanted:
            continue
        why = {each.provider: each.reason for each in selection.rejections}.get(wanted)
        instead = f"; `{wanted}` does" if wanted else ""
        passed_over = f", but: {why}" if why else ", but stands behind it" if wanted else ""
        yield f"`{name}` by `{selection.provider}` does not promise them{instead}{passed_over}"
