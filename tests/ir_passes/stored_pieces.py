"""Pieces that Inductor compiled, modules like those it writes, and another process to run code."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ir_passes.backends.base import BackendContext
from ir_passes.backends.inductor import Inductor
from ir_passes.backends.piece import CompiledPiece
from ir_passes.backends.stored_code import StoredCode

MODULE = """
import torch
from torch._inductor.select_algorithm import extern_kernels

aten = torch.ops.aten
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
{header}

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        x, = args
        args.clear()
        return ({result}, )

runner = Runner(partitions=[])
call = runner.call

def get_args():
    return [torch.ones(1)]

if __name__ == "__main__":
    print(call(get_args()))
"""
LOADER = """
import pickle, sys
from pathlib import Path
import torch
from ir_passes.backends.code_loader import load_code

folder = Path(sys.argv[1])
code, inputs = pickle.loads((folder / "given").read_bytes())
results = load_code(code, "piece")(inputs)
torch.save((list(results), list(sys.modules)), folder / "returned")
"""


def compile_piece(function: Callable[..., Any], *arguments: Any, **options: Any) -> CompiledPiece:
    """What Inductor makes of a function, for every size of its arguments."""
    from torch._inductor.decomposition import select_decomp_table

    with torch.no_grad():
        module = make_fx(
            function, decomposition_table=select_decomp_table(), tracing_mode="symbolic"
        )(*arguments)
    return Inductor().compile(module, BackendContext("piece", options=options))


def generated_module(path: Path, result: str = "x + 1", header: str = "") -> ModuleType:
    """A module like those that Inductor writes, loaded as it loads them."""
    path.write_text(MODULE.format(result=result, header=header))
    module = ModuleType("generated")
    module.__file__ = str(path)
    code = compile(path.read_text(), str(path), "exec", dont_inherit=True)
    exec(code, vars(module))  # noqa: S102
    return module


def run_elsewhere(
    folder: Path, code: StoredCode, inputs: Sequence[Tensor], environment: Mapping[str, str]
) -> tuple[list[Tensor], list[str]]:
    """What code returns in a process of its own, and the modules that this imported."""
    (folder / "given").write_bytes(pickle.dumps((code, list(inputs))))
    subprocess.run(
        [sys.executable, "-c", LOADER, str(folder)], env=dict(environment), timeout=60, check=True
    )
    results, modules = torch.load(folder / "returned", weights_only=True)
    return results, modules
