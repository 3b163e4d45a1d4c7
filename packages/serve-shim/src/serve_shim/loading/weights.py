"""Owns filling a model's parameters from a checkpoint; refuses one whose tensors do not match."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

import ir_core as ir
from serve_shim.errors import ModelLoadError
from serve_shim.loading.checkpoint import Checkpoint
from serve_shim.models.matrix import Matrix
from serve_shim.models.sharding import plan_sharding
from serve_shim.models.weight_form import DENSE
from serve_shim.models.weight_slots import WeightSlot, weight_slots

Progress = Callable[[str, int, int], None]

_MAX_LISTED = 8


def check_tensors(checkpoint: Checkpoint, source: str) -> list[WeightSlot]:
    """Return the whole model's slots; reads no weights and allocates none.

    Raises `ModelLoadError` listing missing and unexpected tensors, or the first tensor whose
    shape differs with both shapes.
    """
    shapes = checkpoint.shapes
    slots = list(weight_slots(plan_sharding(checkpoint.config)))
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
) -> dict[str, ir.LayoutChoice]:
    """Copy each slot's part straight into the merged parameters, one tensor at a time.

    A matrix is packed, in place, when its last part is read. Returns the layouts by the matrix's
    path. `progress` is called with ("weights", tensors done, tensors in all).
    """
    layouts: dict[str, ir.LayoutChoice] = {}
    unread = Counter(slot.module for slot in slots if slot.is_matrix)
    for done, slot in enumerate(slots):
        if progress is not None:
            progress("weights", done, len(slots))
        module = model.get_submodule(slot.module)
        if not slot.is_matrix or not isinstance(module, Matrix):
            _fill_vector(model.get_parameter(slot.parameter), slot, checkpoint)
            continue
        _fill_matrix(module, slot, checkpoint)
        unread[slot.module] -= 1
        if not unread[slot.module]:
            layouts[slot.module] = module.pack()
    if progress is not None:
        progress("weights", len(slots), len(slots))
    return layouts


def _fill_vector(parameter: Tensor, slot: WeightSlot, checkpoint: Checkpoint) -> None:
    (part,) = slot.spans
    values = parameter[slot.start : slot.stop]
    values[part.length :].zero_()
    if part.length:
        checkpoint.read_into(slot, DENSE, [values[: part.length]])


def _fill_matrix(matrix: Matrix, slot: WeightSlot, checkpoint: Checkpoint) -> None:
    rows, columns = slot.spans
    if rows.is_padded or columns.is_padded:
        for stored in matrix.stored_rows(slot.start, slot.stop):
            stored.zero_()
    if rows.length and columns.length:
        part = matrix.stored_rows(slot.start, slot.start + rows.length, columns.length)
        checkpoint.read_into(slot, matrix.form, part)


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
