"""Workloads that dense and quantised projections share. Makes no tensors."""

from ir_core.ops.workload import Workload

# (out, in): what a small model's layers and its head multiply by, and a matrix of a larger one.
_BENCH_SHAPES = ((1536, 576), (576, 1536), (49152, 576), (8192, 2048))

BENCHES = tuple(
    Workload(
        f"{shape[1]}x{shape[0]}-{num_tokens}",
        "bound by bandwidth" if num_tokens == 1 else "a batch reads the weight once for all",
        {"num_tokens": num_tokens, "shape": shape},
        checked=False,
        bench=True,
        moves_all_bytes=num_tokens == 1,
    )
    for shape in _BENCH_SHAPES
    for num_tokens in (1, 32)
)

CHECKS = (
    Workload("one-row", "decode of one request", {"num_tokens": 1, "shape": (960, 576)}),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32, "shape": (192, 1536)}),
    Workload("prefill", "more tokens than a tile", {"num_tokens": 130, "shape": (96, 576)}),
    Workload("bias", "q, k and v of Qwen2", {"num_tokens": 5, "biased": True}),
    Workload("deep", "a long sum", {"num_tokens": 2, "shape": (16, 4096)}),
    Workload("last-row", "one row after the last full panel", {"num_tokens": 3, "shape": (33, 64)}),
    Workload("few-rows", "no full panel", {"num_tokens": 17, "shape": (5, 96)}),
    Workload("leading-dims", "activations of three dims", {"num_tokens": 3, "middle": (2,)}),
    Workload(
        "odd-values", "not a number, and subnormal ones", {"num_tokens": 4, "odd_values": True}
    ),
)
