"""Owns GGML's block formats and their expansion to float32; refuses formats it does not know.

Every function takes blocks as uint8 [num_blocks, block_bytes] and fills a float32
[num_blocks, block_values], in the order of operations that makes the result bit-equal with the
reference. Layouts: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Expand = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`values` numbers take `num_bytes` bytes; `is_quantised` when that loses precision."""

    name: str
    values: int
    num_bytes: int
    expand: Expand
    is_quantised: bool = True


def _half(blocks: Tensor, start: int) -> Tensor:
    return blocks[:, start : start + 2].view(torch.float16).float()


def _nibbles(packed: Tensor, out: Tensor) -> None:
    """Fill `out` with the low halves of all bytes, then the high ones."""
    out.copy_(torch.cat([packed & 15, packed >> 4], dim=1))


def _expand_f32(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.float32))


def _expand_f16(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.float16))


def _expand_bf16(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.bfloat16))


def _expand_q4_0(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 2:], out)
    out.sub_(8).mul_(_half(blocks, 0))


def _expand_q4_1(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 4:], out)
    scale_and_minimum = blocks[:, :4].view(torch.float16).float()
    out.mul_(scale_and_minimum[:, :1]).add_(scale_and_minimum[:, 1:])


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (blocks[:, start : start + 4, None] >> shifts) & 1
    return bits.flatten(1).float() * 16


def _expand_q5_0(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 6:], out)
    out.add_(_fifth_bits(blocks, 2)).sub_(16).mul_(_half(blocks, 0))


def _expand_q5_1(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 8:], out)
    out.add_(_fifth_bits(blocks, 4)).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _expand_q8_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8))
    out.mul_(_half(blocks, 0))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and minimum, float32 [num_blocks, 8, 1], from the shared 16-byte head."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat([low & 63, (high & 15) | ((low >> 6) << 4)], dim=1)
    minimums = torch.cat([middle & 63, (high >> 4) | ((middle >> 6) << 4)], dim=1)
    scale, minimum = _half(blocks, 0) * scales, _half(blocks, 2) * minimums
    return scale.unsqueeze(2), minimum.unsqueeze(2)


def _k_nibbles(packed: Tensor) -> Tensor:
    groups = packed.reshape(-1, 4, 1, 32)
    return torch.cat([groups & 15, groups >> 4], dim=2).view(-1, 8, 32)


def _expand_q4_k(blocks: Tensor, out: Tensor) -> None:
    scale, minimum = _k_scales(blocks)
    values = out.view(-1, 8, 32)
    values.copy_(_k_nibbles(blocks[:, 16:]))
    values.mul_(scale).sub_(minimum)


def _expand_q5_k(blocks: Tensor, out: Tensor) -> None:
    scale, minimum = _k_scales(blocks)
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    fifth = (blocks[:, None, 16:48] >> shifts) & 1
    values = out.view(-1, 8, 32)
    values.copy_(_k_nibbles(blocks[:, 48:]) | (fifth << 4))
    values.mul_(scale).sub_(minimum)


def _expand_q6_k(blocks: Tensor, out: Tensor) -> None:
    low = blocks[:, :128].view(-1, 2, 1, 64)
    low = torch.cat([low & 15, low >> 4], dim=2).view(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3
    scale = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    values = out.view(-1, 16, 16)
    values.copy_((low | (high << 4)).view(-1, 16, 16))
    values.sub_(32).mul_(scale.unsqueeze(2))


FORMATS: dict[int, BlockFormat] = {
    0: BlockFormat("F32", 1, 4, _expand_f32, is_quantised=False),
    1: BlockFormat("F16", 1, 2, _expand_f16, is_quantised=False),
    2: BlockFormat("Q4_0", 32, 18, _expand_q4_0),
    3: BlockFormat("Q4_1", 32, 20, _expand_q4_1),
    6: BlockFormat("Q5_0", 32, 22, _expand_q5_0),
    7: BlockFormat("Q5_1", 32, 24, _expand_q5_1),
    8: BlockFormat("Q8_0", 32, 34, _expand_q8_0),
    12: BlockFormat("Q4_K", 256, 144, _expand_q4_k),
    13: BlockFormat("Q5_K", 256, 176, _expand_q5_k),
    14: BlockFormat("Q6_K", 256, 210, _expand_q6_k),
    30: BlockFormat("BF16", 1, 2, _expand_bf16, is_quantised=False),
}
UNSUPPORTED_NAMES: dict[int, str] = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
