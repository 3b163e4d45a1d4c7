import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.cli.arguments import (
    example_arguments,
    parse_assignments,
    parse_dtype,
    parse_shape,
)
from ir_core.cli.errors import UsageError
from ir_core.testing import fresh_registry

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("BFloat16", torch.bfloat16),
        ("torch.float32", torch.float32),
        ("half", torch.float16),
        ("i64", torch.int64),
    ],
)
def test_dtype_has_torchs_name_and_short_ones(text: str, dtype: torch.dtype) -> None:
    assert parse_dtype(text) == dtype


@pytest.mark.parametrize("text", ["", "8x", "8x4096x", "ax4", "8,4", "-8x4"])
def test_malformed_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="8x4096"):
        parse_shape(text)


def test_shape_may_have_one_size_or_a_size_of_zero() -> None:
    assert parse_shape("4096") == (4096,)
    assert parse_shape("0x8X2") == (0, 8, 2)


def test_repeated_assignment_is_refused() -> None:
    with pytest.raises(UsageError, match="`epsilon` is set twice"):
        parse_assignments(["epsilon=1", "epsilon=2"], ir.ops.rms_norm)


def test_other_tensors_follow_the_size_of_the_activations() -> None:
    x, weight, epsilon, size = example_arguments(
        ir.ops.rms_norm, torch.bfloat16, (3, 4096), {}, CPU
    )
    assert (x.shape, x.dtype) == ((3, 4096), torch.bfloat16)
    assert (weight.shape, weight.dtype) == ((4096,), torch.bfloat16)
    assert (epsilon, size) == (1e-5, None)


def test_token_dims_follow_the_number_of_tokens() -> None:
    query, key, positions, table, head_size, _ = example_arguments(
        ir.ops.rotary_embedding, torch.float32, (64, 9, 64), {}, CPU
    )
    assert query.shape == (64, 9, 64)
    assert key.shape == (64, 3, 64)
    assert positions.shape == (64,)
    assert table.shape == (512, 64)
    assert head_size == 64


def test_assignments_set_scalars_tensors_and_none() -> None:
    given = {"weight": "8:f32", "epsilon": "1e-6", "variance_size": "4"}
    _, weight, epsilon, size = example_arguments(
        ir.ops.rms_norm, torch.bfloat16, (2, 8), given, CPU
    )
    assert (weight.shape, weight.dtype, epsilon, size) == ((8,), torch.float32, 1e-6, 4)
    given = {"weight": "none"}
    assert example_arguments(ir.ops.rms_norm, torch.bfloat16, None, given, CPU)[1] is None
    given = {"is_neox": "false"}
    op = ir.ops.rotary_embedding
    assert example_arguments(op, torch.bfloat16, None, given, CPU)[-1] is False


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epsilon": "small"}, "`epsilon` of `rms_norm` is float, and `small` is none"),
        ({"epsilon": "none"}, "cannot be None"),
        ({"variance_size": "1.5"}, "and `1.5` is none"),
        ({"weight": "wide"}, "is no shape"),
        ({"weight": "8:f33"}, "No dtype `f33`"),
    ],
)
def test_value_that_does_not_fit_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        example_arguments(ir.ops.rms_norm, torch.bfloat16, None, given, CPU)


def test_op_without_a_generator_needs_its_tensors_named() -> None:
    registry = fresh_registry()

    @registry.register_op
    def mix(x: Tensor, table: Tensor, rate: float = 0.5) -> Tensor:
        return x * rate

    with pytest.raises(UsageError, match="give --arg table=VALUE"):
        example_arguments(mix, torch.float32, (2, 3), {}, CPU)
    x, table, rate = example_arguments(mix, torch.float32, (2, 3), {"table": "4x5:i64"}, CPU)
    assert (x.shape, table.shape, table.dtype, rate) == ((2, 3), (4, 5), torch.int64, 0.5)


def test_quantized_weights_follow_the_size_of_the_activations() -> None:
    arguments = example_arguments(ir.ops.linear_w4a16, torch.bfloat16, (3, 576), {}, CPU)
    x, weight, scale, *_ = arguments
    assert (x.shape, weight.shape, scale.shape) == ((3, 576), (48, 288), (48, 18))
    assert (weight.dtype, scale.dtype) == (torch.uint8, torch.float16)


def test_a_shape_is_refused_where_there_are_no_activations() -> None:
    with pytest.raises(UsageError, match="`embedding` has no activations to shape"):
        example_arguments(ir.ops.embedding, torch.bfloat16, (3, 576), {}, CPU)


def test_a_dtype_is_given_by_name() -> None:
    given = {"dtype": "f16", "weight": "10x64:i8"}
    arguments = example_arguments(ir.ops.embedding_w8a16, torch.bfloat16, None, given, CPU)
    assert arguments[3] == torch.float16
    assert (arguments[1].shape, arguments[1].dtype) == ((10, 64), torch.int8)
