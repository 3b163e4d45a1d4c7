from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import (
    ArgumentError,
    BatchDependentPredicateError,
    IrOp,
    NoImplementationError,
    PredicateError,
    Registry,
    UnknownOpError,
)

AddScale = Callable[..., None]
X = torch.ones(4, 8)


def same_dtype(x: Any, weight: Any, factor: Any, width: Any = None) -> Any:
    return x.dtype == weight.dtype and width is None


def few_rows(x: Any, weight: Any, factor: Any, width: Any = None) -> Any:
    return x.shape[0] <= 8


def swallowing(x: Any, weight: Any, factor: Any, width: Any = None) -> Any:
    try:
        return x.shape[0] <= 8
    except Exception:
        return False


def with_reason(x: Any, weight: Any, factor: Any, width: Any = None) -> Any:
    return "needs a weight" if weight is None else True


def nothing(x: Any, weight: Any, factor: Any, width: Any = None) -> Any:
    return None


def truthy(x: Any, weight: Any, factor: Any, width: Any = None) -> Any:
    return 1


def broken_project(x: Any, weight: Any, bias: Any = None, layout: str = "plain") -> Any:
    raise KeyError("table")


def broken(x: Any, weight: Any, factor: Any, width: Any = None) -> Any:
    raise KeyError("table")


def test_a_provider_that_reads_other_layouts_is_rejected_before_it_is_asked(
    registry: Registry, project: IrOp, add_project: AddScale
) -> None:
    add_project("packed", layouts=("upside_down",), supports_args=broken_project)
    add_project("unpacked")
    registry.priorities.set({"project": ["packed", "unpacked"]})
    plain = project.select(X, X)
    assert (plain.provider, plain.layout) == ("unpacked", "plain")
    assert plain.rejections[0].reason == (
        "reads layout `upside_down`, and the weights lie in `plain`"
    )
    registry.priorities.set({"project": ["unpacked"]})
    packed = project.select(X, X, layout="upside_down")
    assert (packed.provider, packed.layout) == ("native", "upside_down")
    assert packed.rejections[0].reason == (
        "reads layout `plain`, and the weights lie in `upside_down`"
    )


def test_the_first_that_can_run_wins_and_the_others_have_reasons(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("absent", supported=(False, "library `absent` is not installed"))
    add_scale("typed", supports_args=same_dtype)
    add_scale("any")
    registry.priorities.set({"scale": ["absent", "typed", "any"]})
    selection = registry.select("scale", X, torch.ones(8, dtype=torch.float64), 2.0)
    assert selection.provider == "any"
    assert selection.implementation is scale.implementations["any"]
    assert [(each.provider, each.reason) for each in selection.rejections] == [
        ("absent", "library `absent` is not installed"),
        (
            "typed",
            "`same_dtype` refused x.dtype = torch.float32, weight.dtype = torch.float64, "
            "factor = 2.0",
        ),
    ]
    assert registry.select(scale, X, torch.ones(8), factor=2.0).provider == "typed"


def test_a_predicate_sees_scalars_and_missing_tensors_as_they_are(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    seen: list[Any] = []

    def spy(x: Any, weight: Any, factor: Any, width: Any = None) -> bool:
        seen.append((weight, factor, width))
        return True

    add_scale("spy", supports_args=spy)
    registry.priorities.set({"scale": "spy"})
    scale.select(X, None, 0.5, 3)
    assert seen == [(None, 0.5, 3)]


def test_a_returned_text_is_the_reason(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("picky", supports_args=with_reason)
    registry.priorities.set({"scale": "picky"})
    assert scale.select(X, None, 1.0).rejections[0].reason == "needs a weight"


def test_no_answer_is_a_refusal(registry: Registry, scale: IrOp, add_scale: AddScale) -> None:
    add_scale("silent", supports_args=nothing)
    registry.priorities.set({"scale": "silent"})
    assert "`nothing` refused" in scale.select(X, None, 1.0).rejections[0].reason


@pytest.mark.parametrize("tokens", [0, 1, 4, 64])
@pytest.mark.parametrize("predicate", [few_rows, swallowing])
def test_a_predicate_that_reads_the_batch_is_an_error_for_every_batch(
    registry: Registry, scale: IrOp, add_scale: AddScale, predicate: Any, tokens: int
) -> None:
    add_scale("probe_small", supports_args=predicate)
    registry.priorities.set({"scale": "probe_small"})
    line = predicate.__code__.co_firstlineno
    with pytest.raises(BatchDependentPredicateError) as caught:
        scale(torch.ones(tokens, 8), None, 1.0)
    message = str(caught.value)
    assert f"`{predicate.__name__}` of provider `probe_small` for op `scale`" in message
    assert any(f"{__file__}:{line + offset}" in message for offset in (1, 2))


def test_it_is_the_same_error_for_symbolic_sizes(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    add_scale("probe_small", supports_args=few_rows)
    registry.priorities.set({"scale": "probe_small"})
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        x = torch.empty((env.create_unbacked_symint(), 8))
    with pytest.raises(BatchDependentPredicateError):
        scale.select(x, None, 1.0)


@pytest.mark.parametrize(
    ("predicate", "words"),
    [(truthy, "`truthy` .* returned 1; return True"), (broken, "`broken` .* raised KeyError")],
)
def test_a_misbehaving_predicate_is_an_error(
    registry: Registry, scale: IrOp, add_scale: AddScale, predicate: Any, words: str
) -> None:
    add_scale("bad", supports_args=predicate)
    registry.priorities.set({"scale": "bad"})
    with pytest.raises(PredicateError, match=words):
        scale.select(X, None, 1.0)


def test_when_nothing_fits_every_provider_has_its_reason(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("picky", supports_args=with_reason, batch_invariant=True)
    registry.set_batch_invariant(True)
    words = r"(?s)No implementation of `scale`.*native: not batch-invariant.*picky: needs a weight"
    with pytest.raises(NoImplementationError, match=words):
        scale.select(X, None, 1.0)


@pytest.mark.parametrize("name", ["factor", "width"])
def test_a_symbolic_scalar_is_hidden(
    registry: Registry, scale: IrOp, add_scale: AddScale, name: str
) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def large(x: Any, weight: Any, factor: Any, width: Any = None) -> bool:
        return {"factor": factor, "width": width}[name] > 2

    add_scale("large", supports_args=large)
    registry.priorities.set({"scale": "large"})
    env = ShapeEnv()
    scalar = env.create_unbacked_symfloat() if name == "factor" else env.create_unbacked_symint()
    words = f"reads `{name}` .dynamic here, though `token_dims`"
    with pytest.raises(BatchDependentPredicateError, match=words):
        scale.select(X, None, **{"factor": 1.0, name: scalar})


def test_a_symbolic_scalar_in_a_list_is_hidden(registry: Registry) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    @registry.register_op
    def fold(x: Tensor, sizes: list[int]) -> Tensor:
        return x.reshape(sizes).clone()

    @fold.register_impl("even", supports_args=lambda x, sizes: sizes[-1] % 2 == 0)
    def even(x: Tensor, sizes: list[int]) -> Tensor:
        return x.reshape(sizes).clone()

    registry.priorities.set({"fold": "even"})
    assert fold.select(X, [4, 8]).provider == "even"
    with pytest.raises(BatchDependentPredicateError, match=r"`sizes\[1\]` .dynamic"):
        fold.select(X, [4, ShapeEnv().create_unbacked_symint()])


def test_select_checks_op_and_arguments(registry: Registry, scale: IrOp) -> None:
    with pytest.raises(UnknownOpError, match="did you mean `scale`"):
        registry.select("scael", X)
    with pytest.raises(ArgumentError, match="`factor`"):
        registry.select("scale", X, None, "2")
