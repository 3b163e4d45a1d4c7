from typing import Any

import pytest
from torch import Tensor

from ir_core import IrOp, RegistrationError, Registry


def pair(x: Tensor, x_residual: Tensor, cache: Tensor, count: int) -> tuple[Tensor, Tensor]:
    raise NotImplementedError


def single(x: Tensor, weight: Tensor) -> Tensor:
    raise NotImplementedError


def optional(x: Tensor | None) -> Tensor:
    raise NotImplementedError


def number(x: Tensor) -> int:
    raise NotImplementedError


def laid_out(x: Tensor, weight: Tensor, layout: str = "plain") -> Tensor:
    raise NotImplementedError


def relaid(x: Tensor, weight: Tensor, layout: str = "packed") -> Tensor:
    raise NotImplementedError


def test_activations_are_by_default_the_tensors_that_start_with_x(registry: Registry) -> None:
    op = registry.register_op(pair)
    assert op.activations == ("x", "x_residual")
    assert dict(op.token_dims) == {"x": frozenset({0}), "x_residual": frozenset({0})}
    assert not op.allow_inplace
    assert not op.splits
    assert op.mutates == ()


def test_every_flag_is_kept(registry: Registry) -> None:
    op = registry.register_op(
        name="renamed",
        activations=["x"],
        mutates=["cache"],
        splits=True,
        opaque=True,
        batch_invariant=True,
        token_dims={"cache": (1, 2), "count": ()},
    )(pair)
    weighted = registry.register_op(weights=["weight"])(laid_out)
    assert weighted.weights == ("weight",)
    assert op.weights == ()
    assert isinstance(op, IrOp)
    assert op.name == "renamed"
    assert op.activations == ("x",)
    assert op.mutates == ("cache",)
    assert op.splits
    assert op.native.opaque
    assert op.native.batch_invariant
    assert op.token_dims["cache"] == {1, 2}
    assert op.token_dims["count"] == frozenset()
    assert "Tensor(a2!) cache" in op.schema.text


@pytest.mark.parametrize(
    ("function", "flags", "words"),
    [
        (pair, {"activations": ["y"]}, "`activations` of op `pair` names `y`.*Valid: `cache`"),
        (pair, {"activations": ["count"]}, "names `count`, which is no parameter it can name"),
        (pair, {"mutates": ["x_residul"]}, "x_residul"),
        (pair, {"token_dims": {"wieght": 0}}, "`token_dims` of op `pair` names `wieght`"),
        (pair, {"token_dims": {"cache": -1}}, "count dims from 0"),
        (pair, {"name": "Pair"}, "Op name `Pair` is malformed"),
        (pair, {"name": "1st"}, "Op name `1st` is malformed"),
        (single, {"allow_inplace": True, "activations": ["x", "weight"]}, "1 outputs and 2"),
        (number, {"allow_inplace": True}, "all must be tensors"),
        (pair, {"allow_inplace": True, "mutates": ["cache"]}, "both mutates"),
        (optional, {"allow_inplace": True}, r"may be None, of \['x'\]"),
        (laid_out, {"weights": ["wieght"]}, "`weights` of op `laid_out` names `wieght`"),
        (laid_out, {"weights": ["layout"]}, "names `layout`, which is no parameter it can name"),
        (laid_out, {"weights": ["x"]}, r"names \['x'\], which change from call to call"),
        (laid_out, {"weights": ["weight"], "mutates": ["weight"]}, "change from call to call"),
        (single, {"weights": ["weight"]}, 'needs a parameter `layout: str = "plain"`'),
        (relaid, {"weights": ["weight"]}, 'needs a parameter `layout: str = "plain"`'),
    ],
)
def test_a_wrong_flag_is_refused_by_name(
    registry: Registry, function: Any, flags: dict[str, Any], words: str
) -> None:
    with pytest.raises(RegistrationError, match=words):
        registry.register_op(**flags)(function)
    assert len(registry) == 0
