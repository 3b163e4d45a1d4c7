"""The package's names load when they are used, and nothing heavy before."""

import ast
import subprocess
import sys
from pathlib import Path

import ir_passes


def test_every_name_of_the_front_door_is_there() -> None:
    for name in ir_passes.__all__:
        assert getattr(ir_passes, name).__name__ == name


def test_names_for_type_checkers_are_those_at_run_time() -> None:
    tree = ast.parse(Path(str(ir_passes.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(imported) == set(ir_passes.__all__)
    for name, module in imported.items():
        assert f"ir_passes.{ir_passes._OWNERS[name]}" == module


def test_import_loads_no_torch_and_passes_load_no_compiler() -> None:
    code = (
        "import sys, ir_passes; assert 'torch' not in sys.modules; "
        "[getattr(ir_passes, name) for name in ir_passes.__all__]; "
        "assert not {'torch._dynamo', 'torch._inductor'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
