from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import Registry
from ir_core.errors import ArgumentError, RegistrationError, SchemaMismatchError
from ir_core.schema import Schema


def example(x: Tensor, weight: Tensor | None, factor: float, width: int | None = None) -> Tensor:
    raise NotImplementedError


SCHEMA = Schema.of(example)


def test_schema_tells_names_types_defaults_and_returns() -> None:
    types = ["Tensor", "Tensor?", "float", "int?"]
    assert [parameter.type for parameter in SCHEMA.parameters] == types
    assert SCHEMA.names == ("x", "weight", "factor", "width")
    assert SCHEMA.tensor_names == ("x", "weight")
    assert SCHEMA.defaults == (None,)
    assert SCHEMA.returns == ("Tensor",)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, 2, 3), {}),
        ((1, 2, 3, None), {}),
        ((1,), {"factor": 3, "weight": 2}),
        ((), {"width": None, "factor": 3, "weight": 2, "x": 1}),
    ],
    ids=["omitted", "explicit", "mixed", "keywords"],
)
def test_bind_gives_every_form_of_a_call_the_same_values(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert SCHEMA.bind("op", args, kwargs) == (1, 2, 3, None)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1, 2, 3, 4, 5), {}, "takes 4 arguments, got 5"),
        ((1, 2), {}, r"misses \['factor'\]"),
        ((1, 2, 3), {"x": 1}, r"\['x'\] twice"),
        ((1, 2, 3), {"eps": 1}, r"\['eps'\] which it does not have"),
    ],
)
def test_bind_refuses_a_wrong_call_in_words(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        SCHEMA.bind("op", args, kwargs)


@pytest.mark.parametrize(
    ("index", "value"),
    [(0, 1.0), (0, None), (1, "w"), (2, "1"), (2, None), (2, True), (3, 1.5), (3, False)],
)
def test_values_of_a_wrong_type_name_op_and_parameter(index: int, value: object) -> None:
    values: list[object] = [torch.ones(1), None, 1.0, 3]
    SCHEMA.check_values("scale", values)
    values[index] = value
    with pytest.raises(ArgumentError, match=f"`scale` got .* for `{SCHEMA.names[index]}`"):
        SCHEMA.check_values("scale", values)


def test_an_int_is_a_valid_float_and_a_list_a_valid_list() -> None:
    def listed(x: Tensor, sizes: list[int], flag: bool = True, kind: str = "none") -> Tensor:
        raise NotImplementedError

    schema = Schema.of(listed)
    schema.check_values("op", [torch.ones(1), (1, 2), False, "tanh"])
    SCHEMA.check_values("op", [torch.ones(1), None, 1, None])
    with pytest.raises(ArgumentError, match="`sizes`"):
        schema.check_values("op", [torch.ones(1), 3, True, "none"])


def other_name(x: Tensor, w: Tensor | None, factor: float, width: int | None = None) -> Tensor:
    raise NotImplementedError


def other_type(x: Tensor, weight: Tensor, factor: float, width: int | None = None) -> Tensor:
    raise NotImplementedError


def other_default(x: Tensor, weight: Tensor | None, factor: float, width: int | None = 1) -> Tensor:
    raise NotImplementedError


def no_default(x: Tensor, weight: Tensor | None, factor: float, width: int | None) -> Tensor:
    raise NotImplementedError


def other_return(
    x: Tensor, weight: Tensor | None, factor: float, width: int | None = None
) -> tuple[Tensor, Tensor]:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (other_name, "parameters are"),
        (other_type, "`weight` is Tensor, not Tensor?"),
        (other_default, "`width` defaults to 1, not defaults to None"),
        (no_default, "`width` has no default, not defaults to None"),
        (other_return, "returns are"),
    ],
)
def test_the_first_difference_is_put_in_words(function: Any, words: str) -> None:
    difference = Schema.of(function).difference(SCHEMA)
    assert difference is not None
    assert words in difference


def test_equal_schemas_have_no_difference() -> None:
    assert Schema.of(example).difference(SCHEMA) is None


def keyword_only(x: Tensor, *, factor: float) -> Tensor:
    raise NotImplementedError


def positional_only(x: Tensor, /) -> Tensor:
    raise NotImplementedError


def variadic(*x: Tensor) -> Tensor:
    raise NotImplementedError


def unannotated(x) -> Tensor:  # type: ignore[no-untyped-def]
    raise NotImplementedError


def unknown_type(x: dict[str, int]) -> Tensor:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (keyword_only, "`factor` of `keyword_only` is keyword-only"),
        (positional_only, "`x` of `positional_only` is positional-only"),
        (variadic, "variadic"),
        (unannotated, "`unannotated` cannot be an op"),
        (unknown_type, "`unknown_type` cannot be an op"),
        (dict, "no readable signature"),
    ],
)
def test_what_torch_cannot_express_is_refused(function: Any, words: str) -> None:
    with pytest.raises(RegistrationError, match=words):
        Schema.of(function)


def test_an_unknown_mutated_name_is_refused() -> None:
    with pytest.raises(RegistrationError, match="cache"):
        Schema.of(example, ["cache"])


def typed(x: Tensor, dtype: torch.dtype, other: torch.dtype | None = None) -> Tensor:
    return x.to(dtype)


def test_a_dtype_is_a_parameter_of_its_own_type(registry: Registry) -> None:
    op = registry.register_op(typed)
    assert [each.type for each in op.schema.parameters] == ["Tensor", "ScalarType", "ScalarType?"]
    x = torch.ones(2)
    for call in (op, op.torch_op, torch.compile(op, backend="eager", fullgraph=True)):
        assert call(x, torch.bfloat16).dtype == torch.bfloat16
        assert call(x, torch.float16).dtype == torch.float16
    torch.compiler.reset()
    for wrong in (5, "bfloat16", None):
        with pytest.raises(ArgumentError, match="for `dtype`, which is ScalarType"):
            op.bind(x, wrong)
    with pytest.raises(SchemaMismatchError, match="`dtype` is int, not ScalarType"):

        @op.register_impl("integer")
        def _(x: Tensor, dtype: int, other: torch.dtype | None = None) -> Tensor:
            return x
