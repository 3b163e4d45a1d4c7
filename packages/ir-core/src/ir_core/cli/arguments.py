"""Arguments of an op from words on a command line: dtypes, shapes, `NAME=VALUE`. Calls no op."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ir_core.cli.errors import UsageError
from ir_core.op import IrOp
from ir_core.schema import Parameter
from ir_core.suggestion import suggest

_ALIASES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "f32": "float32",
    "fp32": "float32",
    "float": "float32",
    "f64": "float64",
    "fp64": "float64",
    "fp8": "float8_e4m3fn",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
}
_DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
_INTEGERS = ("int8", "uint8", "int32", "int64", "bool")


def parse_dtype(text: str) -> torch.dtype:
    """A dtype by torch's name or a usual short one; UsageError with a suggestion otherwise."""
    name = _ALIASES.get(text.lower().removeprefix("torch."), text.lower().removeprefix("torch."))
    if name not in _DTYPES + _INTEGERS:
        raise UsageError(f"No dtype `{text}`; {suggest(text, (*_DTYPES, *_INTEGERS, *_ALIASES))}")
    return getattr(torch, name)


def parse_shape(text: str) -> tuple[int, ...]:
    """Sizes from `8x4096`; UsageError for anything else."""
    sizes = text.lower().split("x")
    if not all(size.isdecimal() for size in sizes):
        raise UsageError(f"`{text}` is no shape; write sizes with x between them, as 8x4096")
    return tuple(int(size) for size in sizes)


def parse_assignments(texts: Sequence[str], op: IrOp) -> dict[str, str]:
    """`NAME=VALUE` words by parameter name; UsageError for an unknown or repeated name."""
    assignments: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"`{text}` is no assignment; write NAME=VALUE")
        if name not in op.schema.names:
            raise UsageError(
                f"`{op.name}` has no parameter `{name}`; {suggest(name, op.schema.names)}"
            )
        if name in assignments:
            raise UsageError(f"`{name}` is set twice")
        assignments[name] = value
    return assignments


def example_arguments(
    op: IrOp,
    dtype: torch.dtype,
    shape: tuple[int, ...] | None,
    assignments: Mapping[str, str],
    device: torch.device,
) -> tuple[Any, ...]:
    """One value per parameter, tensors without meaningful contents.

    Raises:
        UsageError: a value that does not fit, or a parameter that nothing gives a value.
    """
    if shape is not None and not op.activations:
        raise UsageError(f"`{op.name}` has no activations to shape; set parameters with --arg")
    generated = _generated(op, dtype)
    given = {
        name: _parse_value(op, name, text, dtype, device) for name, text in assignments.items()
    }
    values: list[Any] = []
    resized = _resizing(op, generated, shape)
    for parameter in op.schema.parameters:
        if parameter.name in given:
            values.append(given[parameter.name])
        elif parameter.name in generated:
            values.append(_resized(op, parameter.name, generated[parameter.name], resized, device))
        elif parameter.name in op.activations and shape is not None:
            values.append(torch.empty(shape, dtype=dtype, device=device))
        elif parameter.has_default:
            values.append(parameter.default)
        else:
            raise UsageError(
                f"`{op.name}` has no input generator to make `{parameter.name}`; give "
                f"--arg {parameter.name}=VALUE"
            )
    return tuple(values)


def _generated(op: IrOp, dtype: torch.dtype) -> dict[str, Any]:
    if not op.has_input_generator:
        return {}
    inputs = op.generate_inputs(num_tokens=8, dtype=dtype)
    return dict(zip(op.schema.names, op.schema.bind(op.name, inputs, {}), strict=True))


_Resizing = tuple[torch.Size, tuple[int, ...]] | None


def _resizing(op: IrOp, generated: Mapping[str, Any], shape: tuple[int, ...] | None) -> _Resizing:
    """The generated shape of the first activation, and the wanted one."""
    first = generated.get(op.activations[0]) if op.activations else None
    if shape is None or not isinstance(first, Tensor):
        return None
    return first.shape, shape


def _resized(op: IrOp, name: str, value: Any, resizing: _Resizing, device: torch.device) -> Any:
    if not isinstance(value, Tensor):
        return value
    if resizing is None:
        return value.to(device)
    old, new = resizing
    if value.shape == old:
        return value.new_empty(new, device=device)
    if name in op.weights:
        # Quantised ones have several values in an element, or one for several.
        sizes = (*value.shape[:-1], value.shape[-1] * new[-1] // old[-1])
        return value.new_empty(sizes, device=device)
    token_dims = op.token_dims.get(name, frozenset())
    sizes = [
        new[0] if dim in token_dims else new[-1] if size == old[-1] else size
        for dim, size in enumerate(value.shape)
    ]
    return value.new_empty(sizes, device=device)


def _parse_value(op: IrOp, name: str, text: str, dtype: torch.dtype, device: torch.device) -> Any:
    parameter = op.schema.parameters[op.schema.names.index(name)]
    if text.lower() == "none":
        if not parameter.is_optional:
            raise UsageError(f"`{name}` of `{op.name}` cannot be None; it is {parameter.type}")
        return None
    if parameter.is_tensor:
        sizes, _, dtype_name = text.partition(":")
        own = parse_dtype(dtype_name) if dtype_name else dtype
        return torch.empty(parse_shape(sizes), dtype=own, device=device)
    return _parse_scalar(op, parameter, text)


def _parse_scalar(op: IrOp, parameter: Parameter, text: str) -> Any:
    kind = parameter.type.rstrip("?")
    if kind == "ScalarType":
        return parse_dtype(text)
    try:
        if kind == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return {"int": int, "float": float, "str": str}[kind](text)
    except (KeyError, ValueError):
        raise UsageError(
            f"`{parameter.name}` of `{op.name}` is {parameter.type}, and `{text}` is none"
        ) from None
