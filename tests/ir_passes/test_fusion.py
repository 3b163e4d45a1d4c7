"""Fusions match by structure, replace only where nobody can tell, and give a reason elsewhere."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_passes.arguments import bound_arguments
from ir_passes.base import Pass
from ir_passes.donation import donated_arguments, mark_donated
from ir_passes.errors import PassError
from ir_passes.location import line_of
from ir_passes.matching.fusion import Fusion
from ir_passes.matching.pattern import call, free
from ir_passes.matching.rewrite import Rewrite
from ir_passes.pipeline import Pipeline
from ir_passes.report import PassReport
from ir_passes.tracing.model_trace import trace_model
from ir_passes.tracing.whole_graph import WholeGraph

from .conftest import Toy
from .graphs import apply, calls, node_calling, random_tensors, trace

ROWS = ("T", 8)
X, Y, W, F, G = free("x", "y", "w", "f", "g")
aten = torch.ops.aten


def _fusion(name: str, *rewrites: Rewrite) -> Pass:
    kind = dataclass(frozen=True)(type("Named", (Fusion,), {"name": name, "rewrites": rewrites}))
    return kind()


def _sum_of_halves(toy: Toy) -> Pass:
    """`halves(x)[0] + halves(x)[1]` becomes `x * 0.75`."""
    halves = call(toy.halves, X)
    total = call(aten.add.Tensor, halves[0], halves[1], commutes=True)
    return _fusion("sum_of_halves", Rewrite(total, {total: call(aten.mul.Tensor, X, 0.75)}))


def _run(
    toy: Toy, step: Pass, model: Callable[..., Any], *shapes: Any
) -> tuple[WholeGraph, PassReport]:
    """Run a pass on a model and compare the results before and after."""
    shapes = shapes or (ROWS, ROWS)
    whole = trace(model, *shapes, dialect=toy.dialect)
    inputs = random_tensors(*shapes)
    wanted = whole.module(*[each.clone() for each in inputs])
    report = apply(whole, step, dialect=toy.dialect)
    torch.testing.assert_close(whole.module(*inputs), wanted)
    return whole, report.passes[0]


def _reasons(report: PassReport) -> list[str]:
    return [row.reason for row in report.near_misses]


OUTPUT_USES: dict[str, Callable[[Any], Any]] = {
    "both": lambda h: h[0] + h[1],
    "swapped": lambda h: h[1] + h[0],
}


@pytest.mark.parametrize("use", OUTPUT_USES.values(), ids=OUTPUT_USES.keys())
def test_outputs_of_an_op_are_matched_by_index(toy: Toy, use: Callable[[Any], Any]) -> None:
    whole, report = _run(toy, _sum_of_halves(toy), lambda x, y: use(toy.halves(x)))
    assert report.result.changed == 1
    assert calls(whole.module) == ["mul"]


def test_repeated_getitem_is_matched(toy: Toy) -> None:
    def model(x: Tensor) -> Tensor:
        first, second = toy.halves(x)
        return first + second

    whole = trace(model, ROWS, dialect=toy.dialect)
    halves = node_calling(whole.module, "halves")
    first = next(user for user in halves.users if user.args[1] == 0)
    with whole.module.graph.inserting_after(first):
        twin = whole.module.graph.call_function(operator.getitem, first.args)
    twin.meta.update(first.meta)
    for user in list(first.users):
        user.replace_input_with(first, twin)
    assert apply(whole, _sum_of_halves(toy), dialect=toy.dialect).changed == 1


def test_one_output_twice_is_another_pattern(toy: Toy) -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        first, _ = toy.halves(x)
        return first + first

    _, report = _run(toy, _sum_of_halves(toy), model)
    assert "is output 0, not" in _reasons(report)[0]


def test_outputs_of_two_calls_are_another_pattern(toy: Toy) -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return toy.halves(x)[0] + toy.halves(y)[1]

    _, report = _run(toy, _sum_of_halves(toy), model)
    assert _reasons(report) == ["`halves` and `halves_1` are not one call"]


def test_inner_value_with_another_user_stays(toy: Toy) -> None:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = toy.halves(x)
        return first + second, second * 3

    _, report = _run(toy, _sum_of_halves(toy), model)
    (reason,) = _reasons(report)
    assert reason.endswith("is also used by `mul`")


def test_inner_value_that_is_returned_stays(toy: Toy) -> None:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = toy.halves(x)
        return first + second, first

    _, report = _run(toy, _sum_of_halves(toy), model)
    assert _reasons(report)[0].endswith("is also used by `output`")


def test_replaced_inner_value_may_have_any_users(toy: Toy) -> None:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        scaled = toy.scale(x, None, 3.0)
        early = scaled.view(-1, 2, 4) * 2
        total, rest = toy.merge(scaled, y, 5.0)
        return total, rest, scaled, early

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    scaled = call(toy.scale, X, W, F)
    merged = call(toy.merge, scaled, Y, G)
    new_scaled = call(toy.scale, X, W, F)
    new = call(toy.merge, new_scaled, Y, G)
    step = _fusion(
        "remake", Rewrite(merged, {merged[0]: new[0], merged[1]: new[1], scaled: new_scaled})
    )
    inputs = random_tensors(ROWS, ROWS)
    wanted = whole.module(*inputs)
    with pytest.raises(PassError, match="claims to be idempotent"):
        apply(whole, step, dialect=toy.dialect)
    torch.testing.assert_close(whole.module(*inputs), wanted)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(x.shape),
    "reshape": lambda x: x.reshape(-1, 8),
    "two views": lambda x: x.view(-1, 2, 4).view(-1, 8),
    "slice": lambda x: x[:, :8],
    "slice of all rows": lambda x: x[: x.shape[0]],
    "contiguous": lambda x: x.contiguous(),
    "cast to the same dtype": lambda x: x.to(torch.float32),
    "expand": lambda x: x.expand(-1, 8),
    "transpose twice": lambda x: x.t().t(),
    "squeeze of nothing": lambda x: x.squeeze(1),
    "unsqueeze and back": lambda x: x.unsqueeze(1).squeeze(1),
    "alias": torch.ops.aten.alias.default,
    "one chunk": lambda x: x.chunk(1, dim=1)[0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_identity_view_between_two_ops_is_looked_through(
    toy: Toy, view: Callable[[Tensor], Tensor]
) -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        first, second = toy.halves(x)
        return view(first) + view(second)

    whole, report = _run(toy, _sum_of_halves(toy), model)
    assert report.result.changed == 1
    assert "add" not in calls(whole.module)


def test_identity_view_with_users_of_its_own_is_kept_and_moved_over(toy: Toy) -> None:
    step = _negated_scale(toy)

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scaled = toy.scale(x)
        view = scaled.view(-1, 8)
        return -view, view.view(-1, 2, 4) + 1

    whole, report = _run(toy, step, model)
    assert report.result.changed == 1
    assert calls(whole.module).count("scale") == 2


def _negated_scale(toy: Toy) -> Pass:
    """`-scale(x, w, f)` becomes `scale(-x, w, f)`, beside the value itself."""
    scaled = call(toy.scale, X, W, F)
    negated = call(aten.neg.default, scaled)
    new = call(toy.scale, call(aten.neg.default, X), W, F)
    return _fusion(
        "negated_scale", Rewrite(negated, {negated: new, scaled: call(toy.scale, X, W, F)})
    )


def test_scalars_are_free_and_keep_their_values(toy: Toy) -> None:
    negated = call(aten.neg.default, call(toy.scale, X, W, F))
    new = call(toy.scale, call(aten.neg.default, X), W, F)
    step = _fusion("negated_scale", Rewrite(negated, {negated: new}))

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        given = (-toy.scale(x), -toy.scale(x, None, 2.0), -toy.scale(x, factor=1e-12))
        return *given, -toy.scale(x, y[0], 3.0), -toy.scale(x=x, weight=None)

    whole, report = _run(toy, step, model)
    assert report.result.changed == 5
    scaled = [n for n in whole.module.graph.nodes if n.target is toy.scale.torch_op]
    assert [bound_arguments(node)["factor"] for node in scaled] == [2.0, 2.0, 1e-12, 3.0, 2.0]


def test_constant_of_a_pattern_matches_however_it_is_spelled(toy: Toy) -> None:
    unweighted = call(toy.scale, X)
    step = _fusion("unweighted", Rewrite(unweighted, {unweighted: call(aten.mul.Tensor, X, 2.0)}))

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        scaled = [toy.scale(x), toy.scale(x, None), toy.scale(x, weight=None, factor=2.0)]
        return *scaled, toy.scale(x, None, 3.0), toy.scale(x, y[0])

    _, report = _run(toy, step, model)
    assert report.result.changed == 3
    assert _reasons(report)[0] == "`factor` is 3.0, not 2.0"
    assert _reasons(report)[1].startswith("`weight` is select")


def test_one_free_variable_stands_for_one_value(toy: Toy) -> None:
    double = call(aten.add.Tensor, X, X)
    step = _fusion("double", Rewrite(double, {double: call(aten.mul.Tensor, X, 2)}))
    _, report = _run(toy, step, lambda x, y: (x + x, x + y, x.view(-1, 8) + x))
    assert report.result.changed == 2
    assert _reasons(report) == ["`other` is another value than `x` elsewhere"]


def test_commuting_arguments_match_in_either_order(toy: Toy) -> None:
    scaled = call(toy.scale, X)
    both = call(aten.add.Tensor, scaled, Y, commutes=True)
    merged = call(toy.merge, scaled, Y)
    step = _fusion("merge", Rewrite(both, {both: merged[0]}))
    whole, report = _run(toy, step, lambda x, y: (toy.scale(x) + y, y + toy.scale(x), x + y))
    assert report.result.changed == 2
    assert _reasons(report) == [f"`self` is made by `an input`, not by `{scaled}`"]
    assert calls(whole.module).count("merge") == 2


def test_result_of_another_shape_or_layout_is_not_put_in(toy: Toy) -> None:
    scaled = call(toy.scale, X)
    step = _fusion("sum", Rewrite(scaled, {scaled: call(aten.sum.dim_IntList, X, [1])}))
    whole, report = _run(toy, step, lambda x, y: toy.scale(x))
    assert _reasons(report)[0].startswith("the replacement of `scale` has shape")
    assert calls(whole.module) == ["scale"]
    step = _fusion("transpose", Rewrite(scaled, {scaled: call(aten.permute.default, X, [1, 0])}))
    _, report = _run(toy, step, toy.scale, (8, 8))
    assert "has strides" in _reasons(report)[0]


def test_result_in_an_operands_memory_is_not_put_in(toy: Toy) -> None:
    scaled = call(toy.scale, X)
    step = _fusion("alias", Rewrite(scaled, {scaled: call(aten.alias.default, X)}))
    _, report = _run(toy, step, lambda x, y: toy.scale(x) + 0)
    assert _reasons(report) == ["the replacement of `scale` has other memory"]


def test_operand_that_is_written_in_between_is_not_read_later(toy: Toy) -> None:
    double = call(toy.scale, X)
    negated = call(aten.neg.default, double)
    step = _fusion("negated", Rewrite(negated, {negated: call(aten.mul.Tensor, X, -2.0)}))

    def model(x: Tensor, cache: Tensor) -> Tensor:
        scaled = toy.scale(cache)
        toy.store(x, cache)
        return -scaled

    _, report = _run(toy, step, model)
    assert _reasons(report) == ["`store` writes an operand in between"]


def test_use_before_the_last_operand_is_there_stays(toy: Toy) -> None:
    scaled = call(toy.scale, X)
    total = call(aten.add.Tensor, scaled, Y)
    merged = call(toy.merge, scaled, Y)
    step = _fusion("merge", Rewrite(total, {total: merged[0], scaled: call(toy.scale, X, None)}))

    def model(x: Tensor, y: Tensor) -> Tensor:
        scaled = toy.scale(x)
        return scaled + scaled.exp()

    _, report = _run(toy, step, model)
    assert _reasons(report) == ["`exp` uses a result before all operands are there"]


def test_replacement_stands_after_its_last_operand(toy: Toy) -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        scaled = toy.scale(x)
        other = y.exp()
        return scaled + other

    scaled = call(toy.scale, X)
    total = call(aten.add.Tensor, scaled, Y)
    step = _fusion("merge", Rewrite(total, {total: call(toy.merge, scaled, Y)[0]}))
    whole, report = _run(toy, step, model)
    assert report.result.changed == 1
    assert calls(whole.module) == ["exp", "scale", "merge"]


def test_donation_goes_over_to_the_replacement_unless_it_is_read_later(toy: Toy) -> None:
    old = call(toy.merge, X, Y, 1.0)
    new = call(toy.merge, X, Y, 1.5)
    step = _fusion("merge", Rewrite(old, {old[0]: new[0], old[1]: new[1]}))

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return toy.merge.maybe_inplace(x * 2, y)

    whole = trace_model(model, random_tensors(ROWS, ROWS), dialect=toy.dialect)
    apply(whole, step, dialect=toy.dialect)
    node = node_calling(whole.module, "merge")
    assert donated_arguments(node, toy.dialect) == ("x", "x_other")
    assert line_of(node) == f"{__file__}:{model.__code__.co_firstlineno + 1}"


def test_donation_is_lost_where_the_call_moves_before_another_use(toy: Toy) -> None:
    first = call(toy.scale, X)
    merged = call(toy.merge, first, Y)
    new = call(toy.merge, X, Y, 2.0)
    step = _fusion("early", Rewrite(merged, {merged[0]: new[0]}))

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        doubled = toy.scale(x)
        read = y * 3
        return toy.merge(doubled, y)[0], read

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    mark_donated(node_calling(whole.module, "merge"), ("x_other",))
    apply(whole, step, dialect=toy.dialect)
    node = node_calling(whole.module, "merge")
    assert node.next.target is aten.mul.Tensor or node.next.next.target is aten.mul.Tensor
    assert donated_arguments(node, toy.dialect) == ()


def test_first_rewrite_that_fits_wins(toy: Toy) -> None:
    scaled = call(toy.scale, X)
    negated = call(aten.neg.default, scaled)
    other = call(aten.neg.default, X)
    step = _fusion(
        "negated",
        Rewrite(negated, {negated: call(aten.mul.Tensor, X, -2.0)}),
        Rewrite(other, {other: call(aten.mul.Tensor, X, -1.0)}),
    )
    whole, report = _run(toy, step, lambda x, y: (-toy.scale(x), -y))
    assert report.result.changed == 2
    assert calls(whole.module) == ["mul", "mul"]


def test_narrow_pass_before_a_wider_one_is_reported(toy: Toy) -> None:
    scaled = call(toy.scale, X)
    negated = call(aten.neg.default, scaled)
    narrow = _fusion("narrow", Rewrite(scaled, {scaled: call(aten.mul.Tensor, X, 2.0)}))
    wide = _fusion("wide", Rewrite(negated, {negated: call(aten.mul.Tensor, X, -2.0)}))
    assert Pipeline.of(wide, narrow).conflicts() == ()
    (conflict,) = Pipeline.of(narrow, wide).conflicts()
    assert conflict.startswith("`narrow` runs before `wide` and takes nodes that it needs")
    whole = trace(lambda x: -toy.scale(x), ROWS, dialect=toy.dialect)
    report = apply(whole, wide, narrow, dialect=toy.dialect)
    assert [each.result.changed for each in report.passes] == [1, 0]
