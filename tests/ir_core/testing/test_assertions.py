import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core import testing


def test_fresh_registry_shares_the_meaning_and_nothing_else() -> None:
    registry = testing.fresh_registry([ir.ops.rms_norm, ir.ops.paged_attention])
    copy = registry["rms_norm"]
    copy.register_impl("own")(ir.ops.rms_norm.native.fn)
    assert "own" not in ir.ops.rms_norm.implementations
    assert set(registry["paged_attention"].implementations) == {"native"}
    assert copy.tolerance(torch.float16) == ir.ops.rms_norm.tolerance(torch.float16)
    assert registry["paged_attention"].fake is ir.ops.paged_attention.fake
    assert testing.workloads_of(copy) == testing.workloads_of(ir.ops.rms_norm)
    assert copy.declaration == ir.ops.rms_norm.declaration
    x = torch.ones(2, 4)
    assert torch.equal(copy(x, None, 1e-5), ir.ops.rms_norm(x, None, 1e-5))


def test_fresh_registry_has_the_layouts_of_its_ops() -> None:
    registry = testing.fresh_registry([ir.ops.linear])
    copy = registry["linear"]
    assert copy.layouts == ir.ops.linear.layouts
    x, weight = torch.randn(2, 6), torch.randn(20, 6)
    packed = copy.pack(copy.bind(x, weight.clone()), "panel16")
    assert torch.equal(copy(*packed), copy(x, weight))


def test_assert_matches_native_takes_packed_weights_and_ops_without_activations() -> None:
    registry = testing.fresh_registry([ir.ops.embedding])
    op = registry["embedding"]

    @op.register_impl("own", layouts=("panel16",))
    def own(input_ids: Tensor, weight: Tensor, layout: str = "plain") -> Tensor:
        return op.native(input_ids, weight, layout)

    ids, weight = torch.tensor([3, 0]), torch.randn(20, 6)
    testing.assert_matches_native(own, *op.pack(op.bind(ids, weight), "panel16"))
    with pytest.raises(testing.CheckRejected, match="reads layout `panel16`"):
        testing.assert_matches_native(own, ids, weight)


def test_fresh_registries_do_not_meet() -> None:
    first, second = testing.fresh_registry(), testing.fresh_registry()
    assert first.namespace != second.namespace


def test_assert_matches_native_passes_and_names_what_is_wrong() -> None:
    (op,) = testing.fresh_registry([ir.ops.rms_norm]).values()

    @op.register_impl("right")
    def right(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> Tensor:
        return op.native.fn(x, weight, epsilon, variance_size)

    @op.register_impl("wrong")
    def wrong(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> Tensor:
        return op.native.fn(x, weight, epsilon * 1000, variance_size)

    x = torch.full((2, 4), 0.1)
    testing.assert_matches_native(right, x, None, epsilon=1e-5)
    with pytest.raises(AssertionError, match=r"`wrong` of `rms_norm`: output 0: worst at index"):
        testing.assert_matches_native(wrong, x, None, epsilon=1e-5)
    assert (x == 0.1).all()
