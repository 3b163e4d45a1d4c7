"""Owns the choice in which form each matrix is held; refuses to read or to allocate weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

import ir_core as ir
from serve_shim.errors import ModelLoadError
from serve_shim.loading.checkpoint import Checkpoint, StoredFormat
from serve_shim.models.matrix import MatrixUse
from serve_shim.models.parameters import MATRICES
from serve_shim.models.weight_form import WeightForm
from serve_shim.models.weight_slots import WeightSlot

Quantization = Literal["auto", "none"]
_KNOWN: tuple[Quantization, ...] = ("auto", "none")


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The form of each matrix that is not dense, by its path, and the `reason` for it all.

    `expanded` says of each dense matrix of a quantised checkpoint why it is dense.
    """

    reason: str
    forms: Mapping[str, WeightForm] = field(default_factory=dict[str, WeightForm])
    expanded: Mapping[str, str] = field(default_factory=dict[str, str])


def is_quantised(slots: Sequence[WeightSlot], checkpoint: Checkpoint) -> bool:
    """Whether any matrix is stored as integers."""
    return any(checkpoint.stored_format(slot.name).is_quantised for slot in slots if slot.is_matrix)


def choose_forms(
    quantization: str, dtype: torch.dtype, slots: Sequence[WeightSlot], checkpoint: Checkpoint
) -> FormChoice:
    """Keep what is stored as integers, unless `quantization` is `none` or `dtype` is float32.

    A merged matrix is kept where one form holds all its parts. Raises `ModelLoadError` for another
    `quantization`.
    """
    if quantization not in _KNOWN:
        raise ModelLoadError(
            f"quantization `{quantization[:40]}` is not supported; supported: {', '.join(_KNOWN)}"
        )
    if not is_quantised(slots, checkpoint):
        return FormChoice("the checkpoint is not quantised")
    if quantization == "none":
        return FormChoice("asked for")
    if dtype == torch.float32:
        return FormChoice("float32 computes with expanded weights")
    stored: dict[str, list[StoredFormat]] = {}
    for slot in slots:
        if slot.is_matrix:
            stored.setdefault(slot.module, []).append(checkpoint.stored_format(slot.name))
    return _keep_stored(stored, checkpoint.config.tie_word_embeddings)


def _keep_stored(stored: Mapping[str, Sequence[StoredFormat]], is_tied: bool) -> FormChoice:
    forms: dict[str, WeightForm] = {}
    expanded: dict[str, str] = {}
    for path, parts in stored.items():
        use = _use_of(path, is_tied)
        shared = _common_forms(parts)
        # Native may look rows up: it expands only those.
        running = [form for form in shared if MatrixUse.PRODUCT not in use or _has_kernel(form)]
        fitting = [form for form in running if MatrixUse.LOOKUP not in use or form.has_lookup]
        if fitting:
            forms[path] = fitting[0]
            continue
        expanded[path] = _why_expanded(parts, shared, running)
        # A tied table in a form without look-ups: products get a matrix of their own.
        if running and MatrixUse.PRODUCT in use:
            forms["lm_head"] = running[0]
    return FormChoice("kept as stored" if forms else "nothing can be kept", forms, expanded)


def _use_of(path: str, is_tied: bool) -> MatrixUse:
    if path != "embedding":
        return MatrixUse.PRODUCT
    return MatrixUse.LOOKUP | MatrixUse.PRODUCT if is_tied else MatrixUse.LOOKUP


def _common_forms(parts: Sequence[StoredFormat]) -> list[WeightForm]:
    return [form for form in parts[0].forms if all(form in part.forms for part in parts)]


def _has_kernel(form: WeightForm) -> bool:
    """Whether products by such weights run on another implementation than native.

    Native expands all the weights at each call, so without another one they are expanded once.
    """
    op, registry = MATRICES[form.kind].product, ir.registry()
    is_invariant = registry.is_batch_invariant()
    for provider in registry.candidates(op):
        implementation = op.implementations[provider]
        if implementation.supported and (implementation.batch_invariant or not is_invariant):
            return implementation is not op.native
    return False


def _why_expanded(
    parts: Sequence[StoredFormat], shared: Sequence[WeightForm], running: Sequence[WeightForm]
) -> str:
    stored = "stored as " + " and ".join(sorted({part.name for part in parts}))
    if running:
        return f"{stored}, and no op looks up rows of {running[0]}"
    if shared:
        op = MATRICES[shared[0].kind].product
        return f"{stored}, and `{op.name}` would run on native, which expands them at each call"
    if all(part.forms for part in parts):
        return f"its parts are {stored}, which no one form holds"
    return f"{stored}, which no form holds"
