"""Values have the same text in every process, or none."""

import enum
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from ir_core.source_closure import UnreadableSourceError
from ir_core.stable_text import StableText


class Mode(enum.Enum):
    """One value."""

    ONE = 1


@dataclass
class Options:
    """A field that is set, and one that need not be."""

    width: int
    depth: int = field(init=False)


def text_of(value: Any) -> str:
    def function(value: FunctionType) -> str:
        return f"<{value.__name__}>"

    def module(value: type | ModuleType) -> str:
        return f"<{value.__name__}>"

    return StableText(function, module).of("value", value)


def options(width: int, depth: int) -> Options:
    made = Options(width)
    made.depth = depth
    return made


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "int 1"),
        (True, "bool True"),
        ("a", "str 'a'"),
        (torch.float16, "torch.float16"),
        (Mode.ONE, "Mode.ONE"),
        ([1, (None,)], "list (int 1, tuple (NoneType None))"),
        ({2, 1}, "set ['int 1', 'int 2']"),
        ({"a": 1}, "dict (tuple (str 'a', int 1))"),
        (options(1, 2), "Options (tuple (str 'width', int 1), tuple (str 'depth', int 2))"),
        (partial(text_of, 1), "partial (<text_of>, tuple (int 1), dict ())"),
        (torch, "<torch>"),
    ],
)
def test_text(value: object, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.ones(1), "`value` is a Tensor, which has no stable text"),
        ([object()], "`value` is a object, which has no stable text"),
        (Options(1), "`value` has a field that is not set"),
    ],
)
def test_no_text(value: object, reason: str) -> None:
    with pytest.raises(UnreadableSourceError, match=reason):
        text_of(value)


def test_what_contains_itself_has_no_text() -> None:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    with pytest.raises(UnreadableSourceError, match="`value` contains itself"):
        text_of(loop)


def test_what_occurs_twice_has_one() -> None:
    once = [1]
    assert text_of((once, once)) == "tuple (list (int 1), list (int 1))"
