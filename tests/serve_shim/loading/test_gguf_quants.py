"""Every block format is bit-equal with the gguf package's own expansion."""

import gguf
import numpy
import pytest
import torch
from gguf.quants import dequantize

from serve_shim.loading.gguf_quants import FORMATS

_NUM_BLOCKS = 37


def _finite_blocks(kind: int) -> numpy.ndarray:
    """Random bytes, but with the half-precision scales of each block finite and of any sign."""
    block = FORMATS[kind]
    generator = numpy.random.default_rng(kind)
    raw = generator.integers(0, 256, (_NUM_BLOCKS, block.num_bytes), dtype=numpy.uint8)
    scales = generator.normal(size=(_NUM_BLOCKS, 2)).astype(numpy.float16).view(numpy.uint8)
    if block.name == "F32":
        return generator.normal(size=(_NUM_BLOCKS, 1)).astype(numpy.float32).view(numpy.uint8)
    if block.name in {"F16", "BF16"}:
        return scales[:, :2]
    start = 208 if block.name == "Q6_K" else 0
    width = min(4 if block.name in {"Q4_1", "Q5_1", "Q4_K", "Q5_K"} else 2, block.num_bytes)
    raw[:, start : start + width] = scales[:, :width]
    return numpy.ascontiguousarray(raw)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
def test_expansion_is_bit_equal_with_the_reference(kind: int) -> None:
    block = FORMATS[kind]
    raw = _finite_blocks(kind)
    expected = dequantize(raw, gguf.GGMLQuantizationType(kind)).reshape(_NUM_BLOCKS, block.values)
    out = torch.full((_NUM_BLOCKS, block.values), 7.0)
    block.expand(torch.from_numpy(raw), out)
    assert numpy.isfinite(expected).all()
    assert numpy.array_equal(out.numpy().view(numpy.uint32), expected.view(numpy.uint32))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
def test_sizes_agree_with_the_reference(kind: int) -> None:
    block = FORMATS[kind]
    expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    assert (block.values, block.num_bytes) == expected
    assert block.name == gguf.GGMLQuantizationType(kind).name
