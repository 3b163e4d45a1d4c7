import inspect

import pytest

import ir_core
from ir_core import errors

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("error", CLASSES, ids=lambda each: each.__name__)
def test_every_error_is_in_the_tree_and_at_the_front_door(error: type[Exception]) -> None:
    assert issubclass(error, errors.IrError)
    assert error.__name__ in (errors.__doc__ or "")
    assert getattr(ir_core, error.__name__) is error


def test_argument_errors_are_type_errors_as_python_callers_expect() -> None:
    assert issubclass(errors.ArgumentError, TypeError)


def test_unknown_names_are_key_errors_that_read_as_sentences() -> None:
    error = errors.UnknownOpError("No op `a`; did you mean `b`?")
    assert isinstance(error, KeyError)
    assert str(error) == "No op `a`; did you mean `b`?"
