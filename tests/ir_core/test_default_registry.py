"""The front door: what `import ir_core as ir` gives, and that it holds without assertions too."""

import subprocess
import sys

import pytest
import torch

import ir_core as ir


def test_ops_are_attributes_and_names() -> None:
    assert isinstance(ir.ops.rms_norm, ir.IrOp)
    assert ir.ops.rms_norm is ir.registry()["rms_norm"]
    assert ir.ops.rms_norm.torch_op is torch.ops.ir.rms_norm.default
    assert "rms_norm" in dir(ir.ops)


def test_an_unknown_op_is_an_attribute_error_with_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="did you mean `rms_norm`"):
        _ = ir.ops.rms_nrm


def test_the_functions_act_on_the_default_registry() -> None:
    x = torch.ones(2, 4)
    with ir.priority({"rms_norm": "native"}):
        assert ir.select("rms_norm", x, None, 1e-6).provider == "native"
        assert ir.priorities()["rms_norm"].providers[0] == "native"
        with torch.no_grad():
            ir.ops.rms_norm(x, None, 1e-6)
    rows = [row for row in ir.selections() if row.op == "rms_norm"]
    assert any(row.provider == "native" for row in rows)
    assert "rms_norm" in ir.format_selections()
    assert ir.check_priority(ir.IrOpPriorityConfig(rms_norm="native")) == {"rms_norm": ("native",)}
    assert isinstance(ir.platform(), ir.Platform)
    ir.load_plugins()


OUT_OF_TREE = """
import torch, ir_core as ir
from torch import Tensor

@ir.register_op
def my_op(x: Tensor) -> Tensor:
    return x + 1

@ir.ops.my_op.register_impl("mine")
def mine(x: Tensor) -> Tensor:
    return x + 10

def model(x):
    return ir.ops.my_op(x=x) * 1

with torch.no_grad():
    with ir.priority({"my_op": ["mine"]}):
        if model(torch.zeros(1)).item() != 10:
            raise SystemExit(3)
        if __debug__:
            compiled = torch.compile(model, backend="eager", fullgraph=True)
            assert compiled(torch.zeros(1)).item() == 10
    if model(torch.zeros(1)).item() != 1:
        raise SystemExit(5)
for wrong in ({"my_opp": "mine"}, {"my_op": "miner"}, {"my_op": ""}, {"my_op": "mine,,native"},
              {"my_op": "mine,mine"}, {"rms_nrm": "native"}):
    for enter in (ir.check_priority, ir.set_priority, lambda lists: ir.priority(lists).__enter__()):
        try:
            enter(wrong)
        except ir.IrError as error:
            print(type(error).__name__)
        else:
            raise SystemExit(6)
try:
    ir.ops.my_op.register_impl("native")
except ir.RegistrationError:
    pass
else:
    raise SystemExit(7)
"""


@pytest.mark.parametrize("flags", [[], ["-O"]], ids=["plain", "optimised"])
def test_an_out_of_tree_op_is_a_full_citizen_with_all_checks(flags: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, *flags, "-c", OUT_OF_TREE],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    names = process.stdout.split()
    expected = ["UnknownOpError", "UnknownProviderError", *["PriorityError"] * 3, "UnknownOpError"]
    assert names == [name for name in expected for _ in range(3)]
