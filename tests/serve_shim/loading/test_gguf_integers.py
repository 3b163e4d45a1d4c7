"""Blocks kept as integers have, to the bit, the values that the gguf package expands them to."""

import gguf
import numpy
import pytest
import torch
from gguf.quants import dequantize
from torch import Tensor

from serve_shim.loading.gguf_integers import SPLITS
from serve_shim.loading.gguf_quants import FORMATS
from serve_shim.models.weight_form import W4A16, W4A16_MINIMUM, WeightForm

_NUM_BLOCKS = 37
_CASES = [(name, form) for name, splits in SPLITS.items() for form in splits]


def _random_blocks(name: str) -> numpy.ndarray:
    """Random bytes, but with finite scales of any sign and size, subnormal ones and zero too."""
    block = next(each for each in FORMATS.values() if each.name == name)
    generator = numpy.random.default_rng(3)
    raw = generator.integers(0, 256, (_NUM_BLOCKS, block.num_bytes), dtype=numpy.uint8)
    scales = generator.normal(size=(_NUM_BLOCKS, 2)).astype(numpy.float16)
    scales[:4] = [[0.0, -0.0], [6e-8, -6e-8], [65504.0, 1.0], [-65504.0, -65504.0]]
    width = 4 if name == "Q4_1" else 2
    raw[:, :width] = scales.view(numpy.uint8)[:, :width]
    return numpy.ascontiguousarray(raw)


def _values(form: WeightForm, parts: list[Tensor]) -> Tensor:
    """What the ops `linear_w4a16` and `linear_w8a16` take the tensors for, in float32."""
    weight, scale, *minimum = parts
    if form in (W4A16, W4A16_MINIMUM):
        weight = torch.stack([weight & 15, weight >> 4], dim=-1).flatten(1)
    integers = weight.float() - (8 if form == W4A16 else 0)
    return integers * scale.float() + (minimum[0].float() if minimum else 0)


@pytest.mark.parametrize(("name", "form"), _CASES, ids=str)
def test_kept_integers_have_the_values_of_the_reference(name: str, form: WeightForm) -> None:
    raw = _random_blocks(name)
    kind = gguf.GGMLQuantizationType[name]
    expected = dequantize(raw, kind).reshape(_NUM_BLOCKS, 32)
    parts = [torch.from_numpy(numpy.ascontiguousarray(part)) for part in SPLITS[name][form](raw)]
    assert [part.shape[0] for part in parts] == [_NUM_BLOCKS] * len(parts)
    assert all(part.dtype is torch.float16 for part in parts[1:])
    assert len(parts) == (3 if form.has_minimum else 2)
    assert torch.equal(_values(form, parts), torch.from_numpy(expected))


def test_smallest_form_comes_first() -> None:
    assert next(iter(SPLITS["Q4_0"])) == W4A16
