"""Loading holds the weights once: neither reading nor packing makes a second copy of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest

_LAYERS, _HIDDEN, _INNER, _VOCAB = 2, 1024, 12288, 4096
_SLACK_BYTES = 12 << 20
"""For the rotary cache, code and pages that are touched for the first time."""

_SCRIPT = """
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

import ir_core as ir
from serve_shim.loading import load_model, quantization


@ir.ops.linear_w4a16.register_impl("packed_reader", layouts=("panel16",))
def linear_w4a16(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    minimum: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    return ir.ops.linear_w4a16.native.fn(x, weight, scale, minimum, bias, group_size, layout)


def kibibytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


small, large, dtype = sys.argv[1:]
quantization._has_kernel = lambda form: form.kind == "w4a16"
with ir.priority({"linear_w4a16": ["packed_reader"]}):
    load_model(small, dtype=getattr(torch, dtype))
    before = kibibytes("VmRSS")
    report = load_model(large, dtype=getattr(torch, dtype)).load_report
peak = kibibytes("VmHWM") - before
print(json.dumps({"peak": peak * 1024, "bytes": report["bytes"], "kernels": report["kernels"]}))
"""


def _write(path: Path, layers: int, hidden: int, inner: int, vocab: int) -> Path:
    """Write a Llama whose matrices are Q4_0 blocks of zeros."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(hidden // 32)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {"token_embd": (vocab, hidden), "output": (vocab, hidden), "output_norm": (hidden,)}
    for layer in range(layers):
        block = f"blk.{layer}"
        shapes |= {f"{block}.{part}": (hidden,) for part in ("attn_norm", "ffn_norm")}
        square = ("attn_q", "attn_k", "attn_v", "attn_output")
        shapes |= {f"{block}.{part}": (hidden, hidden) for part in square}
        shapes |= {f"{block}.{part}": (inner, hidden) for part in ("ffn_gate", "ffn_up")}
        shapes |= {f"{block}.ffn_down": (hidden, inner)}
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", numpy.ones(shape, dtype=numpy.float32))
            continue
        blocks = numpy.zeros((shape[0], shape[1] // 32 * 18), dtype=numpy.uint8)
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [("bfloat16", "linear_w4a16 by packed_reader in panel16"), ("float32", "linear by")],
    ids=["kept and packed", "expanded"],
)
def test_peak_is_the_weights_and_the_mapped_file(dtype: str, kernel: str, tmp_path: Path) -> None:
    small = _write(tmp_path / "small.gguf", 1, 32, 32, 32)
    large = _write(tmp_path / "large.gguf", _LAYERS, _HIDDEN, _INNER, _VOCAB)
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, small, large, dtype],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert any(each.startswith(kernel) for each in found["kernels"])
    assert found["bytes"] > 4 * _SLACK_BYTES
    assert found["peak"] < found["bytes"] + large.stat().st_size + _SLACK_BYTES
