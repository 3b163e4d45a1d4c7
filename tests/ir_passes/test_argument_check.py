"""Constants of a call are the same by value and type, whichever object holds them."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import pytest
import torch

from ir_passes.errors import CompileError
from ir_passes.programs.argument_check import ArgumentCheck, named_leaves


class Mode(enum.Enum):
    """Two values."""

    ONE = 1
    TWO = 2


class Unknown:
    """Has no description."""


def call(value: Any) -> None: ...


def check(expected: object, value: object) -> None:
    signature = inspect.signature(call)
    constants = dict(named_leaves(signature, (expected,), {}))
    ArgumentCheck(signature, {}, constants)((value,), {})


def parsed(text: str) -> Any:
    """A value that is no other one's object."""
    return eval(text, {"torch": torch, "Mode": Mode, "nan": float("nan")})  # noqa: S307


EQUAL = (
    *("True", "7", "10**30", "0.5", "-0.0", "nan + 0", "'text ' * 9", "None", "b'by' * 9"),
    *("complex(1, 2)", "range(3)", "slice(1, None)", "...", "Mode.ONE"),
    *("torch.device('cpu')", "torch.float16", "torch.strided", "torch.preserve_format"),
    *("torch.Size([2])", "()", "[]", "{}", "{1, 2}"),
)


@pytest.mark.parametrize("text", EQUAL)
def test_equal_constants_are_one(text: str) -> None:
    check(parsed(text), parsed(text))


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ("1", "True"),
        ("1", "1.0"),
        ("0.0", "-0.0"),
        ("nan", "1.0"),
        ("b'a'", "b'b'"),
        ("'a'", "b'a'"),
        ("complex(0, 0.0)", "complex(0, -0.0)"),
        ("range(3)", "range(4)"),
        ("slice(1)", "slice(2)"),
        ("torch.device('cpu')", "torch.device('meta')"),
        ("torch.float16", "torch.bfloat16"),
        ("Mode.ONE", "Mode.TWO"),
        ("()", "[]"),
        ("{1, 2}", "{1, 3}"),
    ],
)
def test_other_constant_is_refused(expected: str, value: str) -> None:
    with pytest.raises(CompileError, match=r"Argument `value` is .*, not "):
        check(parsed(expected), parsed(value))


def test_object_of_no_known_kind_is_the_same_only_as_itself() -> None:
    one = Unknown()
    check(one, one)
    with pytest.raises(CompileError, match="Unknown"):
        check(one, Unknown())


def test_part_that_the_example_lacked_is_refused() -> None:
    check({"a": 1}, {"a": 1})
    with pytest.raises(CompileError, match=r"`value\.b` is there, and the example had none"):
        check({"a": 1}, {"a": 1, "b": 2})
