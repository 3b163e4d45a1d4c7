"""The sizes at which kernels are measured by default, and the formats there are."""

LINEAR_FORMATS = ("bf16", "f32", "w4a16", "w4a16_min", "w8a16")
CACHE_FORMATS = ("bf16", "f32")
SIZES = ((576, 1536), (1536, 576), (576, 49152), (2048, 8192))
"""Inputs and outputs of a projection: of a small model, of its last layer, of a larger one."""
TOKENS = (1, 4, 16, 32, 128)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
REQUESTS = (1, 32)
HEADS = (9, 3, 64)
"""Query heads, key heads and the size of each."""
