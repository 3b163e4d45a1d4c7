"""Prints what an installation has: torch and its CUDA build, and how the C++ build went."""

import importlib.metadata
import sys

import torch

import ir_core as ir


def main() -> int:
    """Print one line per fact; always returns 0."""
    print(f"python {sys.version.split()[0]}")
    print(f"torch {torch.__version__}, torch.version.cuda {torch.version.cuda}")
    for name in ("ir-core", "ir-passes", "ir-kernels", "serve-shim"):
        print(f"{name} {importlib.metadata.version(name)}")
    ir.load_plugins()
    kernel = ir.ops.rms_norm.implementations["vllm_c"]
    print(f"vllm_c: {'runs here' if kernel.supported else kernel.unsupported_reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
