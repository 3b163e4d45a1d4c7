import functools
from typing import Any

from ir_core.location import line_of_caller, location_of, unwrap


def function(x: int) -> int:
    return x


@functools.wraps(function)
def wrapper(*args: Any) -> Any:
    return function(*args)


HERE = f"{__file__}:{function.__code__.co_firstlineno}"


def test_a_location_is_found_through_partials_and_wrappers() -> None:
    for each in (function, wrapper, functools.partial(wrapper, 1)):
        assert location_of(each) == HERE
        assert unwrap(each) is function


def test_what_has_no_code_is_named_by_its_repr() -> None:
    assert location_of(len) == "<built-in function len>"


def test_the_callers_line_is_the_users() -> None:
    code = test_the_callers_line_is_the_users.__code__
    assert line_of_caller() == f"{__file__}:{code.co_firstlineno + 2}"
