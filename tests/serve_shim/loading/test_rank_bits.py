"""A model on several ranks has the bits of one rank, or is refused with what is in the way."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import ir_core as ir
from ir_kernels import library
from serve_shim.errors import ModelLoadError
from serve_shim.loading.rank_bits import check_rank_bits

pytestmark = pytest.mark.skipif(
    not library.availability()[0], reason="without the C++ library nothing promises them"
)


@pytest.fixture(autouse=True)
def batch_invariant() -> Iterator[None]:
    ir.load_plugins()
    ir.set_batch_invariant(True)
    yield
    ir.set_batch_invariant(None)


def chosen(op: ir.IrOp) -> dict[str, ir.LayoutChoice]:
    """What a matrix of this op gets."""
    values = op.generate_inputs(num_tokens=1, dtype=torch.bfloat16)
    return {"matrix": op.choose_layout(*values)}


@pytest.mark.parametrize("op", [ir.ops.linear, ir.ops.linear_w8a8, ir.ops.embedding])
def test_implementations_that_promise_the_bits_pass(op: ir.IrOp) -> None:
    check_rank_bits(2, torch.bfloat16, chosen(op))


@pytest.mark.parametrize("name", ["linear", "paged_attention"])
def test_another_is_named_with_the_one_that_promises_them(name: str) -> None:
    words = rf"(?s)on 2 ranks .*\n  `{name}` by `rowwise` does not promise them; `in_order` does"
    with ir.priority({name: ["rowwise"]}), pytest.raises(ModelLoadError, match=words):
        check_rank_bits(2, torch.bfloat16, chosen(ir.ops.linear))


def test_why_the_one_that_promises_them_was_passed_over_is_told() -> None:
    linear = ir.ops.linear
    values = linear.generate_inputs(num_tokens=1, dtype=torch.bfloat16)
    rejection = ir.Rejection("in_order", "the library was not built")
    selection = replace(
        linear.select(*values), provider="rowwise", rejections=(rejection,), layout="plain"
    )
    with pytest.raises(ModelLoadError, match="but: the library was not built"):
        check_rank_bits(2, torch.bfloat16, {"matrix": ir.LayoutChoice("plain", selection)})


def test_an_op_of_which_none_promises_them_is_refused() -> None:
    ir.set_batch_invariant(False)
    choice = chosen(ir.ops.linear_w4a16)
    ir.set_batch_invariant(True)
    with pytest.raises(ModelLoadError, match=r"`linear_w4a16` by `\w+` does not promise them$"):
        check_rank_bits(2, torch.bfloat16, choice)
