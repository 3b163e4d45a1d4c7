"""What `register_op` declares about an op, checked against the native function's schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ir_core.errors import RegistrationError
from ir_core.schema import Schema
from ir_core.suggestion import suggest
from ir_core.torch_binding import infer_schema_text
from ir_core.weight_layouts import LAYOUT, PLAIN

TokenDims = Mapping[str, int | tuple[int, ...]]
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Declaration:
    """The facts of an op that do not depend on its implementations.

    `inplace_text` is the schema of `maybe_inplace`, which marks the activations as written; None
    for an op without that overload.
    """

    name: str
    schema: Schema
    activations: tuple[str, ...]
    inplace_text: str | None
    mutates: tuple[str, ...]
    splits: bool
    token_dims: Mapping[str, frozenset[int]]
    weights: tuple[str, ...] = ()


def declare(
    native: Callable[..., Any],
    *,
    name: str | None,
    activations: Sequence[str] | None,
    allow_inplace: bool,
    mutates: Sequence[str],
    splits: bool,
    token_dims: TokenDims | None,
    weights: Sequence[str] = (),
) -> Declaration:
    """Check a native function and its flags.

    Raises:
        RegistrationError: names the op, the flag and what to write instead.
    """
    name = check_name("Op", name or native.__name__)
    schema = Schema.of(native, mutates)
    if activations is None:
        activations = [each for each in schema.tensor_names if each.startswith("x")]
    _check_parameters(name, "activations", activations, schema.tensor_names)
    _check_parameters(name, "mutates", mutates, schema.tensor_names)
    inplace_text = None
    if allow_inplace:
        _check_inplace(name, schema, activations, mutates)
        inplace_text = infer_schema_text(native, activations)
    dims = _token_dims(name, schema, activations, token_dims or {})
    _check_weights(name, schema, weights, (*dims, *mutates))
    return Declaration(
        name,
        schema,
        tuple(activations),
        inplace_text,
        tuple(mutates),
        splits,
        dims,
        tuple(weights),
    )


def check_name(kind: str, name: str) -> str:
    """Return the name of an op or provider, or raise RegistrationError if it is malformed."""
    if not _NAME.fullmatch(name):
        raise RegistrationError(
            f"{kind} name `{name}` is malformed; use lower-case letters, digits and `_`."
        )
    return name


def _check_parameters(op: str, flag: str, names: Iterable[str], valid: Sequence[str]) -> None:
    for name in names:
        if name not in valid:
            raise RegistrationError(
                f"`{flag}` of op `{op}` names `{name}`, which is no parameter it can name; "
                f"{suggest(name, valid)}"
            )


def _check_inplace(
    op: str, schema: Schema, activations: Sequence[str], mutates: Sequence[str]
) -> None:
    if mutates:
        raise RegistrationError(
            f"Op `{op}` both mutates {list(mutates)} and allows in-place; what it writes by its "
            "meaning stays the caller's, so it cannot be donated."
        )
    if any(each != "Tensor" for each in schema.returns):
        raise RegistrationError(
            f"Op `{op}` allows in-place but returns {list(schema.returns)}; all must be tensors."
        )
    optional = [each.name for each in schema.parameters if each.is_optional]
    if not set(optional).isdisjoint(activations):
        raise RegistrationError(
            f"Op `{op}` allows in-place and has activations that may be None, of {optional}; each "
            "output reuses one, so they must be there."
        )
    if len(schema.returns) != len(activations):
        raise RegistrationError(
            f"Op `{op}` allows in-place with {len(schema.returns)} outputs and "
            f"{len(activations)} activations {list(activations)}; each output reuses one."
        )


def _check_weights(op: str, schema: Schema, weights: Sequence[str], moving: Sequence[str]) -> None:
    _check_parameters(op, "weights", weights, schema.tensor_names)
    changing = [name for name in weights if name in moving]
    if changing:
        raise RegistrationError(
            f"`weights` of op `{op}` names {changing}, which change from call to call; a layout "
            "is for what is loaded once."
        )
    layout = next((each for each in schema.parameters if each.name == LAYOUT), None)
    if weights and (layout is None or layout.type != "str" or layout.default != PLAIN):
        raise RegistrationError(
            f"Op `{op}` has weights {list(weights)}, so it needs a parameter "
            f'`{LAYOUT}: str = "{PLAIN}"`.'
        )


def _token_dims(
    op: str, schema: Schema, activations: Sequence[str], given: TokenDims
) -> Mapping[str, frozenset[int]]:
    _check_parameters(op, "token_dims", given, _countable(schema))
    dims = {name: frozenset({0}) for name in activations}
    for name, value in given.items():
        each = (value,) if isinstance(value, int) else tuple(value)
        if any(dim < 0 for dim in each):
            raise RegistrationError(
                f"`token_dims` of op `{op}` gives {value!r} for `{name}`; count dims from 0."
            )
        dims[name] = frozenset(each)
    return dims


def _countable(schema: Schema) -> tuple[str, ...]:
    scalars = [each.name for each in schema.parameters if each.type.rstrip("?") == "int"]
    return (*schema.tensor_names, *scalars)
