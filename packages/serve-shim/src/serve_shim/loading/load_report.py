"""Owns what is said about a load: what was chosen, and why; refuses to choose."""

from collections import Counter
from collections.abc import Mapping

import torch

import ir_core as ir
from serve_shim.loading.quantization import FormChoice
from serve_shim.models.weight_form import DENSE


def report_weights(
    dtype: torch.dtype,
    dtype_reason: str,
    quantization: str,
    choice: FormChoice,
    layouts: Mapping[str, ir.LayoutChoice],
) -> dict[str, object]:
    """What was chosen for the weights and why, each kind of matrix with the number of such.

    `kernels` are those that one row of activations gets; `expanded` counts matrices by the reason.
    """
    kernels = (
        f"{each.selection.op.name} by {each.selection.provider} in {each.layout}"
        for each in layouts.values()
    )
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "dtype_reason": dtype_reason,
        "quantization": quantization,
        "quantization_reason": choice.reason,
        "forms": dict(Counter(str(choice.forms.get(path, DENSE)) for path in layouts)),
        "expanded": dict(Counter(choice.expanded.values())),
        "kernels": dict(Counter(kernels)),
    }


def describe_weights(report: Mapping[str, object]) -> str:
    """One line of what `report_weights` reports, and of which rank it is where there are more."""
    parts: list[str] = []
    if report.get("num_ranks", 1) != 1:
        parts.append(f"rank {report['rank']} of {report['num_ranks']}")
    parts += [
        f"{report['dtype']} ({report['dtype_reason']})",
        f"quantization {report['quantization']} ({report['quantization_reason']}): "
        + _counts(report["forms"]),
        _counts(report["kernels"]),
        _memory(report["bytes"], report["huge_page_bytes"]),
    ]
    if report["expanded"]:
        parts.append(f"expanded: {_counts(report['expanded'])}")
    return "; ".join(parts)


def _memory(num_bytes: object, huge: object) -> str:
    """`huge` counts whole pages, and None is unknown."""
    if not isinstance(num_bytes, int):
        return str(num_bytes)
    share = f", {min(1.0, huge / num_bytes):.0%} in huge pages" if isinstance(huge, int) else ""
    return f"{num_bytes / 2**20:.1f} MiB{share}"


def _counts(counts: object) -> str:
    if not isinstance(counts, Mapping):
        return str(counts)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())
