"""Owns filling a model's parameters from a checkpoint; refuses one whose tensors do not match."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from serve_shim.errors import ModelLoadError
from serve_shim.loading.checkpoint import Checkpoint
from serve_shim.models.weight_slots import WeightSlot, weight_slots

Progress = Callable[[str, int, int], None]

_MAX_LISTED = 8


def check_tensors(checkpoint: Checkpoint, source: str) -> list[WeightSlot]:
    """Return the slots to fill; reads no weights and allocates none.

    Raises `ModelLoadError` listing missing and unexpected tensors, or the first tensor whose
    shape differs with both shapes.
    """
    shapes = checkpoint.shapes
    slots = list(weight_slots(checkpoint.config))
    needed = {slot.name for slot in slots}
    missing = [slot.name for slot in slots if slot.name not in shapes]
    unexpected = [name for name in shapes if name not in needed]
    if missing or unexpected:
        raise ModelLoadError(_describe_mismatch(source, missing, unexpected))
    _check_shapes(slots, shapes, source)
    return slots


def load_weights(
    model: nn.Module,
    slots: Sequence[WeightSlot],
    checkpoint: Checkpoint,
    progress: Progress | None = None,
) -> None:
    """Copy each tensor straight into its rows of the merged parameters, one tensor at a time.

    `progress` is called with ("weights", tensors done, tensors in all).
    """
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    for done, slot in enumerate(slots):
        if progress is not None:
            progress("weights", done, len(slots))
        rows = parameters[slot.parameter][slot.start : slot.start + slot.shape[0]]
        checkpoint.read_into(slot, rows)
    if progress is not None:
        progress("weights", len(slots), len(slots))


def _check_shapes(
    slots: Sequence[WeightSlot], shapes: Mapping[str, tuple[int, ...]], source: str
) -> None:
    for slot in slots:
        found = shapes[slot.name]
        if found != slot.shape:
            raise ModelLoadError(
                f"{source}: tensor `{slot.name}` has shape {list(found)}, "
                f"expected {list(slot.shape)} from the model's configuration"
            )


def _describe_mismatch(source: str, missing: list[str], unexpected: list[str]) -> str:
    parts = [
        f"{len(names)} {kind} tensors: {_bounded(names)}"
        for kind, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    return f"{source}: the weights do not match the configuration; {'; '.join(parts)}"


def _bounded(names: list[str]) -> str:
    shown = ", ".join(f"`{name[:200]}`" for name in names[:_MAX_LISTED])
    more = len(names) - _MAX_LISTED
    return f"{shown} and {more} more" if more > 0 else shown
