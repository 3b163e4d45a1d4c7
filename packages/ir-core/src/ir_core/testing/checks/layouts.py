"""Checks of a weight layout itself: a permutation there and back, and native that reads it."""

from dataclasses import replace

import torch
from torch import Tensor

from ir_core.testing.case import Case, copied, results
from ir_core.testing.comparison import first_byte_difference, is_overlapping
from ir_core.testing.errors import ConformanceError
from ir_core.weight_layouts import PLAIN


def packs_and_unpacks(case: Case) -> None:
    """A packed weight holds the bytes of the plain one, dense, and unpacks to a fresh copy of it.

    That its shape, dtype and device stay is checked wherever it is packed.
    """
    plain = _plain(case)
    packed = case.op.pack(copied(plain), case.layout)
    unpacked = case.op.unpack(packed)
    for name, before, after, again in zip(
        case.op.schema.names, plain, packed, unpacked, strict=True
    ):
        if name not in case.op.weights or not isinstance(before, Tensor):
            continue
        if not after.is_contiguous():
            raise ConformanceError(f"`{name}` packed in `{case.layout}` is not contiguous")
        if not torch.equal(_sorted_bytes(before), _sorted_bytes(after)):
            raise ConformanceError(f"`{name}` packed in `{case.layout}` holds other bytes")
        if is_overlapping(after, again):
            raise ConformanceError(f"`{name}` unpacked from `{case.layout}` is not a copy")
        at = first_byte_difference(before, again)
        if at is not None:
            raise ConformanceError(
                f"`{name}` packed in `{case.layout}` and unpacked is another at {list(at)}: "
                f"{again[at].item():.9g}, not {before[at].item():.9g}"
            )


def native_reads_it_packed(case: Case) -> None:
    """Native gives the same bytes for packed weights as for plain ones."""
    plain = _plain(case)
    packed = case.op.pack(copied(plain), case.layout)
    with torch.no_grad():
        expected = results(case.op, case.op.native(*plain), plain)
        got = results(case.op, case.op.native(*packed), packed)
    for label, ours, native in zip(got.labels, got.tensors, expected.tensors, strict=True):
        at = first_byte_difference(native, ours)
        if at is not None:
            raise ConformanceError(
                f"{label} of native on weights in `{case.layout}` is {ours[at].item():.9g} at "
                f"{list(at)}, on plain ones {native[at].item():.9g}"
            )


def _plain(case: Case) -> tuple[object, ...]:
    return replace(case, layout=PLAIN).arguments()


def _sorted_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8).sort().values
