"""Patterns are checked against the schemas of the ops that they call."""

import pytest
import torch

import ir_core as ir
from ir_passes.errors import PatternError
from ir_passes.matching.pattern import Free, call, calls_in, free, free_names
from ir_passes.matching.rewrite import Rewrite

ADD = torch.ops.aten.add.Tensor
X, Y, W, EPS = free("x", "y", "w", "eps")


def test_call_of_an_ir_op_means_its_functional_form() -> None:
    norm = call(ir.ops.rms_norm, X, W, EPS)
    assert norm.target is ir.ops.rms_norm.torch_op
    assert norm.arguments == {"x": X, "weight": W, "epsilon": EPS, "variance_size": None}
    assert str(norm[1]) == "ir.rms_norm[1]"


def test_outputs_are_taken_by_index_only() -> None:
    with pytest.raises(TypeError, match="take them by index"):
        list(call(ir.ops.rms_norm, X, W, EPS))


def test_call_that_does_not_fit_its_schema_is_an_error() -> None:
    with pytest.raises(PatternError, match="no parameter `eps`; did you mean"):
        call(ir.ops.rms_norm, X, W, eps=EPS)


def test_calls_come_operands_first_and_once() -> None:
    total = call(ADD, X, Y)
    norm = call(ir.ops.rms_norm, total, W, EPS)
    both = call(ADD, norm, total)
    assert list(calls_in(both)) == [total, norm, both]
    assert free_names(both) == {"x", "y", "w", "eps"}
    assert free_names(X) == {"x"}


def test_rewrite_checks_what_it_replaces_and_with_what() -> None:
    total = call(ADD, X, Y)
    norm = call(ir.ops.rms_norm, total, W, EPS)
    fused = call(ir.ops.fused_add_rms_norm, X, Y, W, EPS)
    rewrite = Rewrite(norm, {norm: fused[0], total: fused[1]})
    assert rewrite.new_calls() == (fused,)
    with pytest.raises(PatternError, match="is not part of"):
        Rewrite(norm, {call(ADD, X, Y): fused[0]})
    with pytest.raises(PatternError, match=r"uses \['z'\], which the pattern does not bind"):
        Rewrite(norm, {norm: call(ADD, X, Free("z"))})
    with pytest.raises(PatternError, match="Nothing replaces the pattern's root"):
        Rewrite(norm, {total: fused[1]})


def test_wider_pattern_contains_the_narrower() -> None:
    total = call(ADD, X, Y)
    norm = call(ir.ops.rms_norm, total, W, EPS)
    act = call(ir.ops.silu_and_mul, norm)
    narrow = Rewrite(norm, {norm: norm})
    wide = Rewrite(act, {act: act})
    other = Rewrite(total, {total: total})
    assert wide.contains(narrow)
    assert wide.contains(other)
    assert not narrow.contains(wide)
    assert not narrow.contains(narrow)
    with_size = call(ir.ops.rms_norm, X, W, EPS, 4)
    assert not wide.contains(Rewrite(with_size, {with_size: with_size}))
