"""Typed readers give the value, the default for null, or an error with place, key and value."""

from collections.abc import Callable

import pytest

from serve_shim.errors import ModelLoadError
from serve_shim.models.fields import Fields

_FIELDS = Fields({"n": 3, "x": 0.5, "b": True, "t": "a", "l": ["a"], "o": {"n": 1}, "z": None}, "f")


def test_values_come_back_typed() -> None:
    assert (_FIELDS.integer("n"), _FIELDS.number("x"), _FIELDS.number("n")) == (3, 0.5, 3.0)
    assert (_FIELDS.boolean("b"), _FIELDS.text("t"), _FIELDS.texts("l")) == (True, "a", ["a"])
    assert _FIELDS.integers("n") == (3,)
    assert _FIELDS.section("o").integer("n") == 1
    assert _FIELDS.section("o").where == "f `o`"


def test_null_counts_as_absent() -> None:
    assert not _FIELDS.has("z")
    assert _FIELDS.integer("z", 7) == 7
    with pytest.raises(ModelLoadError, match=r"^f: `z` is missing$"):
        _FIELDS.integer("z")


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda f: f.integer("x"), "`x` is 0.5; expected an integer"),
        (lambda f: f.integer("b"), "`b` is True; expected an integer"),
        (lambda f: f.integer("n", minimum=4), r"`n` is 3; expected 4\.\."),
        (lambda f: f.number("t"), "`t` is 'a'; expected a number"),
        (lambda f: f.number("x", above=0.5), "`x` is 0.5; expected a finite number above 0.5"),
        (lambda f: f.boolean("n"), "`n` is 3; expected true or false"),
        (lambda f: f.text("n"), "`n` is 3; expected a string"),
        (lambda f: f.texts("t"), "`t` is 'a'; expected a list of strings"),
        (lambda f: f.integers("l"), "`l` is .*; expected a non-negative integer"),
        (lambda f: f.section("n"), "`n` is 3; expected an object"),
    ],
)
def test_other_types_are_refused(read: Callable[[Fields], object], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=f"^f: {reason}"):
        read(_FIELDS)
