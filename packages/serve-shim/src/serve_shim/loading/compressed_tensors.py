"""Owns how compressed-tensors modules become the tensors of a matrix; refuses schemes of none.

A module `m` has integers in `m.weight`, or several to an int32 in `m.weight_packed`, the low bits
first and without a sign, next to `m.weight_shape`; its scales are in `m.weight_scale`.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from serve_shim.errors import ModelLoadError
from serve_shim.loading.checkpoint import StoredFormat
from serve_shim.loading.compressed_config import Scheme, Schemes
from serve_shim.loading.safetensors_header import StoredTensor
from serve_shim.models.weight_form import DENSE, W8A8, WeightForm
from serve_shim.models.weight_slots import WeightSlot

Read = Callable[[str, tuple[slice, ...]], Tensor]
"""Reads a part of the tensor of a name."""

# Groups that kernels know; a larger one is several of these with one scale.
_GROUP_SIZES = (128, 64, 32, 16)
_SCALE_TYPES = ("F32", "BF16", "F16")
# Below torch's grain of 32768, so that each step of an expansion runs in this thread.
_CHUNK_VALUES = (1 << 15) - 1


class CompressedTensors:
    """The quantised modules among `tensors`, read by `read`.

    Raises `ModelLoadError` for a module whose tensors are not those of its scheme.
    """

    def __init__(
        self, schemes: Schemes, tensors: Mapping[str, StoredTensor], read: Read, where: str
    ) -> None:
        self._tensors, self._read, self._where = tensors, read, where
        self._schemes = {
            module: scheme
            for module in _matrices(tensors)
            if (scheme := schemes.of(module)) is not None
        }
        self.shapes = {
            f"{module}.weight": self._shape(module, scheme)
            for module, scheme in self._schemes.items()
        }
        """The shape of each quantised weight, by its name in a model that is not quantised."""
        self.parts = frozenset(
            f"{module}.{part}"
            for module, scheme in self._schemes.items()
            for part in _parts(scheme)
        )
        """Names of all tensors that belong to these weights."""

    def stored_format(self, name: str) -> StoredFormat:
        """The scheme of the weight of that name, and the form that its integers can be kept in."""
        module = name.removesuffix(".weight")
        scheme = self._schemes[module]
        return StoredFormat(str(scheme), True, _forms(scheme, self.shapes[name][1]))

    def read_into(self, slot: WeightSlot, form: WeightForm, out: Sequence[Tensor]) -> None:
        """Fill `out` as `Checkpoint.read_into` does; scales are rounded to the form's dtype.

        Raises `ModelLoadError` for a scale that the form's dtype makes infinite.
        """
        module = slot.name.removesuffix(".weight")
        scheme = self._schemes[module]
        rows, columns = (slice(span.start, span.stop) for span in slot.spans)
        if scheme.is_packed:
            self._check_shape(module)
        if form == DENSE:
            self._expand(module, rows, columns, out[0])
            return
        weight, scale = out
        stored = self._bytes(module, rows, columns)
        weight.copy_(stored if form.kind == "w4a16" else _integers(stored, scheme))
        if form == W8A8:
            scale.copy_(self._scales(module, rows, columns)[:, 0])
            return
        scale.copy_(self._scales(module, rows, columns, form.group_size))
        if not scale.isfinite().all():
            raise ModelLoadError(
                f"{self._where}: `{module}.weight_scale` has values that {scale.dtype} does not "
                "hold; load with quantization `none`"
            )

    def _expand(self, module: str, rows: slice, columns: slice, out: Tensor) -> None:
        scheme = self._schemes[module]
        width = columns.stop - columns.start
        per_word = 32 // scheme.bits if scheme.is_packed else 1
        skipped = columns.start % per_word
        held = slice(columns.start - skipped, -(-columns.stop // per_word) * per_word)
        step = max(_CHUNK_VALUES // width, 1)
        for start in range(rows.start, rows.stop, step):
            part = slice(start, min(start + step, rows.stop))
            integers = _integers(self._bytes(module, part, held), scheme)
            values = integers[:, skipped : skipped + width].float()
            values *= self._scales(module, part, columns)
            out[start - rows.start : part.stop - rows.start].copy_(values)

    def _bytes(self, module: str, rows: slice, columns: slice) -> Tensor:
        """The integers as they are stored; packed ones are read in whole words."""
        scheme = self._schemes[module]
        if not scheme.is_packed:
            return self._read(f"{module}.weight", (rows, columns))
        per_word = 32 // scheme.bits
        words = slice(columns.start // per_word, columns.stop // per_word)
        packed = self._read(f"{module}.weight_packed", (rows, words))
        return packed.contiguous().view(torch.uint8)

    def _scales(self, module: str, rows: slice, columns: slice, step: int = 1) -> Tensor:
        """float32 [rows, columns / step]: the scale of every `step`-th column."""
        name, places = f"{module}.weight_scale", torch.arange(columns.start, columns.stop, step)
        size = self._schemes[module].group_size
        if size is None:
            return self._read(name, (rows, slice(0, 1))).float().expand(-1, len(places))
        first = columns.start // size
        stored = self._read(name, (rows, slice(first, -(-columns.stop // size))))
        return stored.float()[:, places // size - first]

    def _shape(self, module: str, scheme: Scheme) -> tuple[int, ...]:
        """The weight's shape; checks the tensors that stand for it."""
        for part in _parts(scheme):
            if f"{module}.{part}" not in self._tensors:
                raise self._error(module, scheme, f"there is no `{part}`")
        for part in ("weight_zero_point", "weight_g_idx"):
            if f"{module}.{part}" in self._tensors:
                raise self._error(module, scheme, f"`{part}` is not supported")
        name, dtype = ("weight_packed", "I32") if scheme.is_packed else ("weight", "I8")
        weight, scale = (self._tensors[f"{module}.{part}"] for part in (name, "weight_scale"))
        if weight.dtype != dtype:
            raise self._error(module, scheme, f"`{name}` is {weight.dtype}, expected {dtype}")
        if scale.dtype not in _SCALE_TYPES:
            found = f"`weight_scale` is {scale.dtype}, expected {', '.join(_SCALE_TYPES)}"
            raise self._error(module, scheme, found)
        rows, columns = weight.shape
        if scheme.is_packed:
            columns *= 32 // scheme.bits
        size = scheme.group_size or columns
        if columns % max(size, 1) or scale.shape != (rows, columns // max(size, 1)):
            raise self._error(
                module,
                scheme,
                f"`weight_scale` has shape {list(scale.shape)} for a weight of {[rows, columns]} "
                + (f"in groups of {size}" if scheme.group_size else "with a scale by row"),
            )
        return rows, columns

    def _check_shape(self, module: str) -> None:
        found = tuple(self._read(f"{module}.weight_shape", (slice(None),)).tolist())
        if found != self.shapes[f"{module}.weight"]:
            raise ModelLoadError(
                f"{self._where}: `{module}.weight_shape` is {list(found)}, but its packed integers "
                f"are {list(self.shapes[f'{module}.weight'])}"
            )

    def _error(self, module: str, scheme: Scheme, problem: str) -> ModelLoadError:
        return ModelLoadError(f"{self._where}: module `{module}` is to be {scheme}: {problem}")


def _matrices(tensors: Mapping[str, StoredTensor]) -> Sequence[str]:
    """Modules that have a matrix, in whatever form."""
    names = (
        name.removesuffix("_packed").removesuffix(".weight")
        for name, tensor in tensors.items()
        if name.endswith((".weight", ".weight_packed")) and len(tensor.shape) == 2
    )
    return tuple(dict.fromkeys(names))


def _parts(scheme: Scheme) -> Sequence[str]:
    if scheme.is_packed:
        return "weight_packed", "weight_shape", "weight_scale"
    return "weight", "weight_scale"


def _forms(scheme: Scheme, columns: int) -> tuple[WeightForm, ...]:
    if scheme.has_int8_activations:
        return (W8A8,)
    size = scheme.group_size or columns
    kind = "w4a16" if scheme.bits == 4 else "w8a16"
    fitting = [each for each in _GROUP_SIZES if size and size % each == 0]
    return (WeightForm(kind, group_size=fitting[0]),) if fitting else ()


def _integers(stored: Tensor, scheme: Scheme) -> Tensor:
    """int8 [rows, columns], given the bytes that are stored."""
    if not scheme.is_packed:
        return stored
    if scheme.bits == 8:
        return (stored ^ 128).view(torch.int8)
    nibbles = torch.stack((stored & 15, stored >> 4), dim=-1).flatten(1)
    return nibbles.view(torch.int8) - 8
