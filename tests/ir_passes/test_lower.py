"""Lowering chooses as eager mode does, keeps the meaning, and blames whoever breaks a contract."""

import pytest
import torch

from ir_passes.errors import LoweringError
from ir_passes.tracing.model_trace import trace_model

from .compiled import lower_whole
from .graphs import calls, random_tensors, trace
from .kernel_toy import Kernels

ROWS = ("T", 8)


def test_native_is_inlined_and_means_the_same(kernels: Kernels) -> None:
    whole = trace(lambda x, w: kernels.scale(x, w, 3.0), ROWS, (8,), dialect=kernels.dialect)
    lowered, _ = lower_whole(whole, kernels.dialect)
    assert calls(whole.module) == ["mul", "mul"]
    assert [(row.op, row.provider) for row in lowered.selections] == [("scale", "native")]
    for tokens in (5, 1, 0):
        x, w = random_tensors(ROWS, (8,), tokens=tokens)
        torch.testing.assert_close(whole.module(x, w)[0], x * 3 * w, rtol=0, atol=0)


def test_choice_and_reasons_are_those_of_eager_mode(kernels: Kernels) -> None:
    kernels.prefer(scale=("picky", "twice"))
    whole = trace(lambda x: kernels.scale(x, None, 3.0), ROWS, dialect=kernels.dialect)
    x = random_tensors(ROWS)[0]
    eager = kernels.scale.select(x, None, 3.0)
    (row,) = lower_whole(whole, kernels.dialect)[0].selections
    assert (row.provider, row.rejections) == (eager.provider, eager.rejections)
    assert row.provider == "twice"
    assert row.rejections[0].reason == "wants a factor of 2"


def test_opaque_implementation_becomes_its_torch_op(kernels: Kernels) -> None:
    kernels.prefer(scale=("opaque",))
    whole = trace(kernels.scale, ROWS, dialect=kernels.dialect)
    lower_whole(whole, kernels.dialect)
    (node,) = [each for each in whole.module.graph.nodes if each.op == "call_function"]
    assert node.target is kernels.scale.implementations["opaque"].torch_op
    x = random_tensors(ROWS)[0]
    torch.testing.assert_close(whole.module(x)[0], x * 2)


def test_in_place_implementation_gets_clones_of_activations_only(kernels: Kernels) -> None:
    kernels.prefer(merge=("inplace",))
    whole = trace(lambda x, y: kernels.merge(x, y, 3.0), ROWS, ROWS, dialect=kernels.dialect)
    lowered, rows = lower_whole(whole, kernels.dialect)
    assert len(lowered.clones) == 2
    assert all("belongs to the caller" in row.reason for row in rows)
    x, y = random_tensors(ROWS, ROWS)
    before = x.clone(), y.clone()
    results = whole.module(x, y)
    torch.testing.assert_close(tuple(results), ((x + y) * 3, x - y), rtol=0, atol=0)
    torch.testing.assert_close((x, y), before, rtol=0, atol=0)


def test_constant_of_an_implementation_comes_along(kernels: Kernels) -> None:
    kernels.prefer(scale=("table",))
    whole = trace(lambda x: kernels.scale(kernels.scale(x)), ROWS, dialect=kernels.dialect)
    lower_whole(whole, kernels.dialect)
    x = random_tensors(ROWS)[0]
    torch.testing.assert_close(whole.module(x)[0], x * 4)


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("wrong_shape", r"shape \(u0, 8\), not \(u0, 7\)"),
        ("wrong_dtype", "dtype torch.float32, not torch.float64"),
        ("wrong_strides", r"strides \(8, 1\), not \(1,"),
        ("aliasing", "returns memory of an argument"),
        ("branching", "(?s)cannot be traced: .* register it with `opaque=True`"),
    ],
)
def test_broken_contract_names_op_and_provider(
    kernels: Kernels, provider: str, message: str
) -> None:
    kernels.prefer(scale=(provider,))
    whole = trace(kernels.scale, ROWS, dialect=kernels.dialect)
    with pytest.raises(LoweringError, match=message) as caught:
        lower_whole(whole, kernels.dialect)
    text = str(caught.value)
    assert f"`{provider}` of `scale`" in text
    assert "kernel_toy.py" in text


def test_error_names_the_line_of_the_model(kernels: Kernels) -> None:
    kernels.prefer(scale=("wrong_dtype",))
    whole = trace_model(
        lambda x: kernels.scale(x) + 1, (torch.ones(3, 8),), dialect=kernels.dialect
    )
    with pytest.raises(LoweringError, match=r"`scale` \(.*test_lower\.py:\d+\)"):
        lower_whole(whole, kernels.dialect)


def test_op_that_nothing_can_run_lists_every_reason(kernels: Kernels) -> None:
    kernels.prefer(scale=("picky",))
    whole = trace(kernels.scale, ROWS, dialect=kernels.dialect)
    kernels.registry.set_batch_invariant(True)
    with pytest.raises(LoweringError, match="No implementation of `scale` can run") as caught:
        lower_whole(whole, kernels.dialect)
    assert "native: not batch-invariant" in str(caught.value)
    assert "picky: not batch-invariant" in str(caught.value)


def test_infinite_constants_survive(kernels: Kernels) -> None:
    whole = trace(lambda x: kernels.scale(x, None, float("inf")), ("T", 8), dialect=kernels.dialect)
    lower_whole(whole, kernels.dialect)
    (result,) = whole.module(torch.ones(3, 8))
    assert result.isinf().all()
