"""Donations are judged by memory, on the whole graph; an error names the two lines at odds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core import DonationError
from ir_passes.dialect import Dialect
from ir_passes.donation import donated_arguments
from ir_passes.tracing.model_trace import trace_model
from ir_passes.tracing.whole_graph import Route, trace_function

from .graphs import FakeInputs, calls, node_calling, random_tensors, trace

FUSED = ir.ops.fused_add_rms_norm
ROWS, WEIGHT = ("T", 8), (8,)


def _trace(function: Callable[..., Any], state: str = ""):
    return trace(function, ROWS, ROWS, WEIGHT, names="x r w", state=state)


def test_maybe_inplace_becomes_the_functional_op_with_a_mark() -> None:
    whole = _trace(lambda x, r, w: FUSED.maybe_inplace(x * 2, r, w, 1e-5))
    node = node_calling(whole.module, "fused_add_rms_norm")
    assert node.target is FUSED.torch_op
    assert donated_arguments(node, Dialect()) == ("x", "x_residual")
    assert "eager_input_vals" not in node.meta
    assert whole.num_donations == 1
    x, r, w = random_tensors(ROWS, ROWS, WEIGHT)
    torch.testing.assert_close(whole.module(x, r, w), FUSED(x * 2, r, w, 1e-5))


def test_functional_call_has_no_mark() -> None:
    whole = _trace(lambda x, r, w: FUSED(x, r, w, 1e-5))
    assert donated_arguments(node_calling(whole.module, "fused_add_rms_norm"), Dialect()) == ()


@pytest.mark.parametrize(
    "call",
    [
        lambda x, r, w: FUSED.maybe_inplace(x, r, w, 1e-5),
        lambda x, r, w: FUSED.maybe_inplace(x=x, x_residual=r, weight=w, epsilon=1e-5),
        lambda x, r, w: FUSED.maybe_inplace(x, r, epsilon=1e-5, weight=w, variance_size=None),
        lambda x, r, w: torch.ops.ir.fused_add_rms_norm.maybe_inplace(
            x_residual=r, weight=w, epsilon=1e-5, x=x
        ),
    ],
)
def test_positional_and_keyword_calls_are_one_call(call: Callable[..., Any]) -> None:
    whole = _trace(call)
    assert donated_arguments(node_calling(whole.module, "fused_add_rms_norm"), Dialect())
    with pytest.raises(DonationError, match="took as `x_residual`"):
        _trace(lambda x, r, w: (call(x, r, w)[0], r + 1))


LATER_USES = {
    "directly": lambda x, r, out: x + out,
    "through a view": lambda x, r, out: x.view(-1)[:4] + 1,
    "through a transpose": lambda x, r, out: x.t() * 2,
    "the other argument": lambda x, r, out: r.sum(),
    "as a second donation": lambda x, r, out: FUSED.maybe_inplace(x, out, None, 1e-5)[0],
    "in place": lambda x, r, out: x.add_(1),
    "returned": lambda x, r, out: x,
    "a view returned": lambda x, r, out: x[:, 2:],
}


@pytest.mark.parametrize("use", LATER_USES.values(), ids=LATER_USES.keys())
def test_use_after_donation_is_an_error(use: Callable[..., Tensor]) -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        s = r * 2
        out, _ = FUSED.maybe_inplace(h, s, w, 1e-5)
        return out, use(h, s, out)

    with pytest.raises(DonationError) as error:
        _trace(model)
    assert "`ir::fused_add_rms_norm` took as `x" in str(error.value)
    assert "clone first" in str(error.value)


def test_view_made_before_the_donation_is_an_alias() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        halves = h.split([4, 4], dim=1)
        out, _ = FUSED.maybe_inplace(h, r, w, 1e-5)
        return out, halves[1] + 1

    with pytest.raises(DonationError, match="took as `x`"):
        _trace(model)


def test_error_names_both_lines_of_the_model() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        out, _ = FUSED.maybe_inplace(x, r, w, 1e-5)
        return out + r

    line = model.__code__.co_firstlineno
    with pytest.raises(DonationError) as error:
        trace_model(model, random_tensors(ROWS, ROWS, WEIGHT), dynamic_dims={"x": 0, "r": 0})
    assert f"{__file__}:{line + 1}" in str(error.value)
    assert f"`aten.add.Tensor` at {__file__}:{line + 2}" in str(error.value)


def test_columns_of_one_buffer_are_independent_for_every_token_count() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        left, right = torch.cat((x, r), dim=1).split([8, 8], dim=1)
        out, _ = FUSED.maybe_inplace(left, r, w, 1e-5)
        return out, right + 1

    assert _trace(model).num_donations == 1


def test_overlapping_columns_are_not_independent() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat((x, r), dim=1)
        out, _ = FUSED.maybe_inplace(both[:, :8], r, w, 1e-5)
        return out, both[:, 7:] + 1

    with pytest.raises(DonationError, match="took as `x`"):
        _trace(model)


def test_metadata_of_a_donated_tensor_may_be_read() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        out, _ = FUSED.maybe_inplace(h, r, w, 1e-5)
        return out, out.view(h.shape[0], 2, 4) + torch.zeros_like(h).view(-1, 2, 4)

    assert _trace(model).num_donations == 1


def test_memory_that_is_filled_anew_is_alive_again() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        out, _ = FUSED.maybe_inplace(h, r, w, 1e-5)
        h.copy_(out)
        return out, h + 1

    whole = _trace(model)
    assert whole.route is Route.AOT_AUTOGRAD
    x, r, w = random_tensors(ROWS, ROWS, WEIGHT)
    out = FUSED(x * 2, r, w, 1e-5)[0]
    torch.testing.assert_close(whole.module(x, r.clone(), w), (out, out + 1))


@pytest.mark.parametrize(
    "arguments", [lambda h: (h, h), lambda h: (h, h.view(-1, 8)), lambda h: (h[:, :8], h[:, :8])]
)
def test_same_memory_passed_twice_is_an_error(arguments: Callable[..., Any]) -> None:
    with pytest.raises(DonationError, match="the same memory as `x` and as `x_residual`"):
        _trace(lambda x, r, w: FUSED.maybe_inplace(*arguments(x * 2), w, 1e-5))


def test_parameter_cannot_be_donated() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        return FUSED.maybe_inplace(x, r.view(-1, 8), w, 1e-5)[0]

    assert _trace(model).num_donations == 1
    with pytest.raises(DonationError, match="`x_residual` the memory of `r`, which belongs to the"):
        _trace(model, state="r w")


def test_constant_of_the_code_is_copied_before_it_is_donated() -> None:
    def model(x: Tensor) -> Tensor:
        return FUSED.maybe_inplace(x, torch.tensor([[1.0] * 8] * 4), None, 1e-5)[0]

    whole = trace(model, (4, 8))
    (x,) = random_tensors((4, 8))
    for _ in range(2):
        torch.testing.assert_close(whole.module(x), (model(x.clone()),))


def test_two_inputs_on_one_storage_are_aliases() -> None:
    fakes = FakeInputs()
    x, r = fakes.tensor(ROWS), fakes.tensor(ROWS)
    with fakes.mode:
        alias = x.view(-1, 2, 4)

    def model(x: Tensor, alias: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return FUSED.maybe_inplace(x, r, None, 1e-5)[0], alias + 1

    with pytest.raises(DonationError, match="took as `x`"):
        trace_function(model, [x, alias, r])


def test_donation_inside_a_branch_is_an_error() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor]:
        return torch.cond(
            x.sum() > 0,
            lambda x, r: (FUSED.maybe_inplace(x * 1, r * 1, None, 1e-5)[0],),
            lambda x, r: (x + r,),
            (x, r),
        )

    with pytest.raises(DonationError, match="inside the body of a control-flow op"):
        _trace(model)


def test_residual_stream_of_layers_is_donated_without_a_copy() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(3):
            x, r = FUSED.maybe_inplace(x * 2, r, w, 1e-5)
        return x, r

    whole = _trace(model)
    assert (whole.num_donations, whole.route) == (3, Route.MAKE_FX)
    assert "clone" not in calls(whole.module)
